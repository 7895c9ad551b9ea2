#!/bin/bash
# train.sh MINUTES FOLDER [EARLIER]: trains the picture model on a machine with one GPU, from the repository's root, without a
# virtual environment, and writes FOLDER/checkpoint. All state is in FOLDER, from which the same call goes on; give as FOLDER
# a place that outlives the machine. EARLIER is such a folder of a call before, if it lies elsewhere. Python is $PYTHON.
# With $CHECKPOINT, a folder, its weights are trained on: denoiser, text encoder and decoder, not the encoder.
# Without Diffusers there, $WHEELS is a folder with the wheels of diffusers, importlib_metadata and zipp. SHARE=0.01 makes
# batches smaller, to try it.
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
share() { $python -c "print(max(0.1, $1 * $minutes))"; }
without_graphs() { SMALL_IMAGE_EAGER=1 "$@"; }
again() { "$@" || without_graphs "$@"; }
on=(${CHECKPOINT:+--checkpoint "$CHECKPOINT"})
# part NAME SHARE OPTION...: one of the trainings, for a share of the minutes.
part() { again "$python" "train/image/$1.py" --out "$folder" --batch "${SHARE:-1}" --minutes "$(share "$2")" "${@:3}"; }
{
  if [ -n "$CHECKPOINT" ]; then
    part draw 0.65 --more "${on[@]}"
  else
    part vae 0.25
    part draw 0.45
  fi
  part sharpen 0.2 "${on[@]}"
  "$python" train/image/write_image.py --out "$folder" "${on[@]}" --folder "$folder/checkpoint"
} 2>&1 | tee -a "$folder/train.log"
