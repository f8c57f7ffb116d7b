"""Which photo is in which shard, written once and extended when the source grows. Read shard_plan.py first."""
