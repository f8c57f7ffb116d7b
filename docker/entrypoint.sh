#!/bin/sh
# A runner starts its worker containers with options of Beam's boot program; everything else is for roibeam.
case "${1:-}" in
--worker_pool | --worker_pool=* | --id=* | --provision_endpoint=* | --control_endpoint=* | --artifact_endpoint=* | --logging_endpoint=* | --semi_persist_dir=*)
    if [ ! -x /opt/apache/beam/boot ]; then
        echo "roibeam: started as a Beam worker ($1), but this image has no /opt/apache/beam/boot; build it with BASE_IMAGE=apache/beam_python3.11_sdk:2.77.0" >&2
        exit 1
    fi
    exec /opt/apache/beam/boot "$@"
    ;;
esac
exec roibeam "$@"
