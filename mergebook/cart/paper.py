"""What CART's claims are tested on (Choi et al., 2025), and the figures of the paper's tables."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mergebook.ledger.checks import Role

LADDER = ("average", "task_arithmetic", "ties", "consensus", "cart")
# Table 1, ViT-B/32, in the order of `LADDER`.
TABLE: dict[str, tuple[float, ...]] = {
    "vision8": (65.9, 69.1, 72.4, 75.2, 84.7),
    "vision14": (64.3, 65.4, 65.2, 70.0, 79.5),
    "vision20": (61.0, 60.5, 62.9, 65.0, 76.3),
}
EXPERTS = 90.5  # what those of vision8's counterpart reach alone
# Table 2, eight GLUE tasks on RoBERTa; it has no Consensus.
GLUE = {"average": 51.34, "task_arithmetic": 66.65, "ties": 64.04, "cart": 70.78}
# Table 3, ViT-B/32; TALL masks are those on TIES.
INDEXING = {
    "vision8": {"cart_indexing": 90.1, "individual": EXPERTS, "emr": 88.8, "tall_masks": 90.8},
    "vision14": {"cart_indexing": 89.2, "individual": 89.6, "emr": 85.7, "tall_masks": 89.6},
    "vision20": {"cart_indexing": 90.1, "individual": 90.5, "emr": 86.3, "tall_masks": 90.2},
}
# The same pictures.
TABLE |= {f"imagenet{count}": TABLE[f"vision{count}"] for count in (8, 14, 20)}
INDEXING["imagenet8"] = INDEXING["vision8"]


class Setting(NamedTuple):
    """A network and its suites: what its results are called, in files and in words."""

    suite: str  # beginning of the suites' names
    words: str  # for the network
    role: Role  # the part that its checks play
    plane: str = "surface"  # the study that has accuracy over ranks and scales
    counts: tuple[int, ...] = (8,)  # of tasks
    compressed: tuple[int, ...] = (8,)  # those that compression was measured with
    ending: str = ""  # of results' names
    network: str = ""  # its name where the claim pools its effect with that of others

    @property
    def name(self) -> str:
        """Of its suite of eight tasks, with the ending of results."""
        return f"{self.suite}8{self.ending}"

    def suites(self, counts: Sequence[int]) -> Iterator[tuple[str, str]]:
        """The suites with this number of tasks, each with its label of network and tasks."""
        for count in counts:
            yield f"{self.suite}{count}", f"{self.words}{count} tasks"


ALL = (8, 14, 20)
SETTINGS = (
    Setting("vision", "", "primary", "ranks", ALL, ALL, network="our ViT"),
    Setting("imagenet", "ImageNet network, ", "primary", counts=ALL, network="EfficientNet-Lite0"),
    Setting("sentences", "sentences, ", "primary", network="MiniLM"),
    Setting("vision", "small network, ", "secondary", "ranks", ALL, ending="-vit_small"),
)
DECIDING = tuple(setting for setting in SETTINGS if setting.role == "primary")
