"""What all records of a store have in common: readers and trainers ask the first record and believe it of all."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from roibeam.features.record.region_record import RegionRecord, TopKDistribution


@dataclass(frozen=True)
class RecordKind:
    """Attributes:
    feature_dim, feature_dtype: of the region features.
    attributes: whether records have any.
    class_distribution: "none", "full of 80 classes", "top-3 of 80 classes".
    image_feature: width of the feature of the whole image; 0 for none.
    """

    feature_dim: int
    feature_dtype: str
    attributes: bool
    class_distribution: str
    image_feature: int

    @classmethod
    def of(cls, record: RegionRecord) -> Self:
        """The kind of one record."""
        distribution = record.class_distribution
        form = "none"
        if isinstance(distribution, TopKDistribution):
            form = f"top-{distribution.class_ids.shape[1]} of {distribution.num_classes} classes"
        elif distribution is not None:
            form = f"full of {distribution.shape[1] - 1} classes"
        return cls(
            feature_dim=record.features.shape[1],
            feature_dtype=record.feature_dtype,
            attributes=record.attribute_ids is not None,
            class_distribution=form,
            image_feature=0 if record.image_feature is None else record.image_feature.size,
        )

    def check(self, other: RecordKind, image_id: str) -> None:
        """ValueError when `other`, of a record that came later, differs; names what does."""
        mine, yours = asdict(self), asdict(other)
        differ = [f"{name} {yours[name]!r}, not {mine[name]!r}" for name in mine if mine[name] != yours[name]]
        if differ:
            raise ValueError(
                f"record {image_id!r}: has {', '.join(differ)} as the records before it; all records of a store have "
                f"the same (of an image without regions give (0, ...) arrays, such as np.zeros((0, D), dtype))"
            )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any, where: str) -> Self:
        """ValueError naming `where` for anything but what `to_json` gives."""
        if not isinstance(value, dict) or value.keys() != {each.name for each in fields(cls)}:
            raise ValueError(f"{where}: was not written by StoreWriter, or was changed; choose a new folder")
        return cls(**value)
