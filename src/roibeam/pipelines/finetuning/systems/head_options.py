"""Which head a task trains on a model, and how it starts: settings without torch."""

from __future__ import annotations

from dataclasses import dataclass

from roibeam.pipelines.data.fit import check_choice

OURS, RELEASE, RELEASE_MT, MATCH = "ours", "release", "release-mt", "match"
HEAD_KINDS = (OURS, RELEASE, RELEASE_MT, MATCH)
DRAWN, WORDS = "drawn", "words"
HEAD_STARTS = (DRAWN, WORDS)


@dataclass(frozen=True)
class HeadOptions:
    """
    Attributes:
        kind: "ours", the same kind of head on every system; "release", that of the system's release; "release-mt", that
            of ViLBERT's multi-task release; "match", that of pre-training for a pair, which scores choices: of
            retrieval.
        start: of the last layer of labels: "drawn", or each label at the mean of its word embeddings ("words": VL-BERT
            on VQA, with the head of its release).
    """

    kind: str = OURS
    start: str = DRAWN

    def __post_init__(self) -> None:
        check_choice(self, "kind", HEAD_KINDS)
        check_choice(self, "start", HEAD_STARTS)
        if self.start == WORDS and self.kind != RELEASE:
            raise ValueError(
                "HeadOptions: start 'words' is of a release's head; set kind to 'release', or start to 'drawn'"
            )
