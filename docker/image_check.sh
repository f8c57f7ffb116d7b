#!/usr/bin/env bash
# Builds the worker image where there is no Docker engine, and extracts two photos inside: root, buildah, debootstrap.
#
#   docker/image_check.sh          `make image-check`; about 20 GB of disk for a while
#   BEAM_BOOT=FILE docker/image_check.sh    the same on a base with Beam's boot program, as Beam's own images have it
#
# The base is a minimal Debian from the mirror in this machine's apt sources. pip inside the build uses this machine's pip
# settings; they are mounted or given as build arguments and do not stay in the image. Nothing is left behind.
set -euo pipefail
cd "$(dirname "$0")/.."

stop() {
    echo "image-check: $*" >&2
    exit 1
}
[ "$(id -u)" = 0 ] || stop "needs root: it mounts and changes root folders"
for tool in buildah debootstrap unshare; do
    command -v "$tool" >/dev/null || stop "needs $tool; try: apt-get install buildah debootstrap util-linux"
done
suite=${DEBIAN_SUITE:-bookworm}
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
    sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] \)\?\([^ ]*\).*/\2/p' | head -n 1) || true
[ -n "$mirror" ] || stop "no Debian mirror in /etc/apt/sources.list or /etc/apt/sources.list.d"

work=$(mktemp -d /var/tmp/roibeam-image.XXXXXX)
export BUILDAH_ISOLATION=chroot
export STORAGE_DRIVER=overlay
mkdir "$work/lower" "$work/upper" "$work/over" "$work/merged"
if mount -t overlay overlay -o "lowerdir=$work/lower,upperdir=$work/upper,workdir=$work/over" "$work/merged" 2>/dev/null; then
    umount "$work/merged"
else
    STORAGE_DRIVER=vfs # a whole copy of the image for each step
fi
buildah() { command buildah --root "$work/storage" --runroot "$work/run" "$@"; }
clean() {
    buildah rm --all >/dev/null 2>&1 || true
    umount "$work/storage/overlay" 2>/dev/null || true
    rm -rf "$work"
}
trap clean EXIT

echo "== base: $suite, Python and CA certificates"
container=$(buildah from scratch)
root=$(buildah mount "$container")
# A mount namespace of its own: what debootstrap mounts goes with it.
unshare --mount --propagation private debootstrap --variant=minbase \
    --include=python3,python3-venv,ca-certificates "$suite" "$root" "$mirror" >"$work/debootstrap.log" 2>&1 ||
    stop "debootstrap: $(tail -n 1 "$work/debootstrap.log")"
[ -z "${BEAM_BOOT:-}" ] || install -D -m 755 "$BEAM_BOOT" "$root/opt/apache/beam/boot"
buildah umount "$container" >/dev/null
buildah commit --quiet --rm "$container" localhost/base >/dev/null

echo "== image"
settings=()
[ ! -f /etc/pip.conf ] || settings+=(--volume /etc/pip.conf:/etc/pip.conf:ro)
certificates=$(python3 -m pip config list | sed -n "s/^[a-z:]*\.cert='\(.*\)'$/\1/p" | head -n 1)
[ -z "$certificates" ] || settings+=(--volume "$certificates:$certificates:ro")
for name in PIP_INDEX_URL PIP_EXTRA_INDEX_URL; do
    [ -z "${!name:-}" ] || settings+=(--build-arg "$name=${!name}")
done
SECONDS=0
buildah bud --quiet --build-arg BASE_IMAGE=localhost/base "${settings[@]}" --tag localhost/roibeam . >"$work/build.log" 2>&1 || {
    tail -n 30 "$work/build.log" >&2
    stop "the image cannot be built"
}
echo "built in $SECONDS s, $(buildah images --format '{{.Size}}' localhost/roibeam)"

echo "== inside"
container=$(buildah from localhost/roibeam)
entry=$(buildah inspect --format '{{index .OCIv1.Config.Entrypoint 0}}' "$container")
inside() { buildah run "$container" -- "$@"; }
[ "$(inside id -u)" != 0 ] || stop "the process inside is root"
inside sh -c 'echo "raise SystemExit(\"a file of the working directory was imported\")" | tee model.py >features.py'
inside "$entry" --help | grep -q extract || stop "roibeam --help does not name its commands"
inside "$entry" toyworld toy --num-images 40
inside sh -c 'mkdir photos && cp $(find toy -name "*.jpg" | sort | head -n 2) photos'
inside "$entry" extract photos store --detector toy --threads 1
inside "$entry" store verify store --deep
inside "$entry" store info store --json | python3 -c 'import json, sys; info = json.load(sys.stdin); sys.exit(0 if info["num_records"] == 2 else f"expected 2 records, got {info}")'
if [ -z "${BEAM_BOOT:-}" ]; then
    ! inside "$entry" --id=1 2>"$work/no-boot" || stop "a base without Beam's boot program passed for one that has it"
    grep -q "has no /opt/apache/beam/boot" "$work/no-boot" || stop "a Beam worker without boot says: $(cat "$work/no-boot")"
else
    ! inside "$entry" --id=1 2>"$work/boot" || stop "Beam's boot program accepted a worker without endpoints"
    grep -q "No provision endpoint provided" "$work/boot" || stop "boot was not started but: $(cat "$work/boot")"
    # Beam's own worker pool in the image starts boot, and boot our Python, for a pipeline from outside the pool.
    buildah run --hostname localhost "$container" -- sh -c '
        "$0" --worker_pool >pool.log 2>&1 & pool=$!
        sleep 10
        "$0" extract photos pool-store --detector toy --threads 1 --runner PortableRunner -- --job_endpoint=embed \
            --environment_type=EXTERNAL --environment_config=localhost:50000
        code=$?
        kill $(cat /proc/$pool/task/$pool/children) $pool
        exit $code' "$entry" || stop "the extraction through the worker pool failed"
    inside "$entry" store diff store pool-store
fi
echo "ok: built, runs as a user, extracts two photos"
