// Browsers refuse to start a worker from a file. Pages that are opened from a folder run the search in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      window.addEventListener("message", (event) => {
        if (event.source !== this.frame.contentWindow) return;
        const message = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      });
      const inner = this.frame.contentDocument;
      inner.open();
      inner.write(
        "<script>" +
          "postMessage = (data) => parent.postMessage(data, '*');" +
          "importScripts = (...urls) => Promise.all(urls.map((url) => new Promise((done) => {" +
          "  const script = document.createElement('script');" +
          "  script.src = url; script.onload = done; document.head.appendChild(script);" +
          "})));" +
          "</" + "script><script src='" + url + "'></" + "script>"
      );
      inner.close();
      this.ready = new Promise((done) => this.frame.contentWindow.addEventListener("load", done));
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.postMessage(data, "*"));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
