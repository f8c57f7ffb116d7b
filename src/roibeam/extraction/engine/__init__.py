"""Engine: photos to records, one outcome per photo in order; threads read and decode, one calls the detector.

No Beam, no shards, no files of a store: those are in pipelines/extract. Read region_iterator.py first, then
detector_calls.py.
"""
