# The worker image: `docker build -t roibeam .`, then `docker run -v /data:/data roibeam extract /data/photos /data/store ...`
# BASE_IMAGE is any Debian-like image with Python 3.11 to 3.13, pip and venv. Built on a Beam SDK image of our Beam version
# (apache/beam_python3.11_sdk:2.77.0) it is also the --sdk_container_image of Dataflow, Flink and Spark: docs/cluster.md.
ARG BASE_IMAGE=python:3.11-slim
FROM ${BASE_IMAGE}
RUN python3 -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else "roibeam needs Python 3.11 to 3.13, BASE_IMAGE has %d.%d; name another base" % v)'
# Without PYTHONSAFEPATH a model.py in the mounted working directory would be imported in place of our package. Beam's
# boot would make an environment of its own without our packages; told not to, it takes the first `python` of PATH: ours.
ENV PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PATH=/opt/roibeam/bin:$PATH RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1
# For builds behind a mirror; no value of these stays in the image.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
# The dependencies (6 GB) are a layer of their own, made anew only when their lock changes. It has a part of the packages in
# ../requirements.lock, in the same versions: what roibeam needs, and no tools of developers. pip compares sums.
WORKDIR /opt/roibeam/src
COPY docker/requirements.lock ./
RUN python3 -m venv /opt/roibeam \
    && /opt/roibeam/bin/pip install --no-cache-dir --require-hashes -r requirements.lock \
    && useradd --create-home --uid 1000 worker && mkdir /data && chown worker /data
COPY pyproject.toml README.md LICENSE ./
COPY src src
# Built by the setuptools of the lock: without isolation pip fetches nothing here.
RUN /opt/roibeam/bin/pip install --no-cache-dir --no-build-isolation --no-deps . && rm -rf build *.egg-info
COPY docker/entrypoint.sh /opt/roibeam/entrypoint.sh
# What pipelines/extract/shard/process_setup.py does, for workers that Beam's boot starts.
ENV MALLOC_ARENA_MAX=1
USER worker
WORKDIR /data
ENTRYPOINT ["/opt/roibeam/entrypoint.sh"]
CMD ["--help"]
