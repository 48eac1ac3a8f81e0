// Browsers refuse to start a worker from a file. Pages that are opened from a folder run the search in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.element = document.createElement("iframe");
      this.element.hidden = true;
      document.body.appendChild(this.element);
      this.frame = this.element.contentWindow;
      this.frame.document.open();
      this.frame.importScripts = (...urls) => Promise.all(urls.map((each) => this.load(each)));
      this.frame.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.frame.document.write("<body></body>");
      this.frame.document.close();
      this.ready = this.load(url);
    }

    load(url) {
      return new Promise((done) => {
        const script = this.frame.document.createElement("script");
        script.onload = done;
        script.src = url;
        this.frame.document.body.appendChild(script);
      });
    }

    postMessage(data) {
      this.ready.then(() => this.frame.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.element.remove();
    }
  };
}
