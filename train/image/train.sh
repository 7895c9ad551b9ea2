#!/bin/bash
# train.sh MINUTES FOLDER [EARLIER]: trains the picture model on a machine with one GPU, from the repository's root, without a
# virtual environment, and writes FOLDER/checkpoint. All state is in FOLDER, from which the same call goes on; give as FOLDER
# a place that outlives the machine. EARLIER is such a folder of a call before, if it lies elsewhere. Python is $PYTHON.
# Without Diffusers there, $WHEELS is a folder with the wheels of diffusers, importlib_metadata and zipp.
set -e -o pipefail
minutes=$1 folder=$2 earlier=$3 python=${PYTHON:-python3}
mkdir -p "$folder"
[ -z "$earlier" ] || cp -n "$earlier"/*.pt "$folder"
export PYTHONPATH=$PWD/train:$PWD/.pkg${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
if [ -n "$WHEELS" ]; then
  site=$(mktemp -d)
  for wheel in "$WHEELS"/*.whl; do $python -m zipfile -e "$wheel" "$site"; done
  PYTHONPATH=$PYTHONPATH:$site
fi
vae=$($python -c "print(0.3 * $minutes)") draw=$($python -c "print(max(0.1, 0.7 * $minutes - 0.7))")
without_graphs() { SMALL_IMAGE_EAGER=1 "$@"; }
again() { "$@" || without_graphs "$@"; }
{
  again "$python" train/image/vae.py --out "$folder" --minutes "$vae"
  again "$python" train/image/draw.py --out "$folder" --minutes "$draw"
  "$python" train/image/write_image.py --out "$folder" --folder "$folder/checkpoint"
} 2>&1 | tee -a "$folder/train.log"
