# The worker image: `docker build -t roibeam .`, then `docker run -v /data:/data roibeam extract /data/photos /data/store ...`
# BASE_IMAGE is any Debian-like image with Python 3.11 to 3.13, pip and venv; a Beam SDK image works too.
ARG BASE_IMAGE=python:3.11-slim
FROM ${BASE_IMAGE}
# Without this a model.py in the mounted working directory would be imported in place of our package.
ENV PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PATH=/opt/roibeam/bin:$PATH
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY extraction extraction
COPY features features
COPY model model
COPY pipelines pipelines
RUN python3 -m venv /opt/roibeam \
    && /opt/roibeam/bin/pip install --no-cache-dir -c constraints.txt . \
    && useradd --create-home worker
USER worker
WORKDIR /data
ENTRYPOINT ["roibeam"]
CMD ["--help"]
