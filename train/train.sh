#!/bin/bash
# train.sh FOLDER: trains `small` and `small-image` from nothing on a machine with GPUs, from the repository's root, without a
# virtual environment; the same call goes on where one was cut off. FOLDER gets all states, logs and times, the checkpoints
# `small` and `image/checkpoint`, and what the recogniser and the judge of drawings say of them. With three GPUs or more, what
# needs nothing of another runs beside it. $PYTHON is Python, $DATA a place for 19 GB of sounds (FOLDER/data), $FLITE the folder
# of flite's libraries if they are not installed, $WHEELS that of wheels which the machine lacks: pocketsphinx, Diffusers and what
# it needs. SHARE=0.01 makes all of it smaller, to try it.
set -e -o pipefail
folder=$1 python=${PYTHON:-python3} data=${DATA:-$1/data} share=${SHARE:-1}
mkdir -p "$folder" "$data"
export PYTHONPATH=$PWD/train:$PWD/tests:$PWD/.pkg${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
if [ -n "$WHEELS" ]; then
  site=$(mktemp -d)
  for wheel in "$WHEELS"/*.whl; do "$python" -m zipfile -e "$wheel" "$site"; done
  export PYTHONPATH=$PYTHONPATH:$site WHEELS=
fi
gpus=$({ nvidia-smi -L 2>/dev/null || true; } | wc -l)
scaled() { "$python" -c "print($share * $1)"; }

# step MARK COMMAND...: runs it if the file MARK is not there, and writes down its seconds; .done files are made here.
step() {
  local mark=$1 began=$SECONDS
  shift
  [ ! -e "$mark" ] || return 0
  "$@"
  echo "$(basename "$mark"): $((SECONDS - began)) s" >> "$folder/times.log"
  [ "${mark%.done}" = "$mark" ] || touch "$mark"
}
# part NAME MINUTES COMMAND...: one of the trainings; on several GPUs MINUTES are those of each.
part() {
  local name=$1 minutes=$2
  shift 2
  step "$folder/$name.done" "$@" "train/$name.py" --data "$data" --out "$folder" --batch "$share" --minutes "$(scaled "$minutes")"
}
make_data() { step "$data/$2" "$python" train/make_data.py --data "$data" --scale "$share" --flite "$FLITE" --only "$1"; }
speakers() {
  if [ "$gpus" -lt 3 ]; then
    part talker 28 "$python"
  else
    part talker 8 "$python" -m torch.distributed.run --standalone --nproc-per-node "$gpus"
  fi
}
drawings() { step "$folder/image.done" env PYTHON="$python" bash train/image/train.sh "$(scaled 13)" "$folder/image"; }

{
  make_data questions questions.pkl
  make_data voices utterances.pkl
  step "$folder/codes-$(basename "$data").pt" "$python" train/codes.py --data "$data" --out "$folder"
  if [ "$gpus" -lt 3 ]; then
    part thinker 14 "$python"
    part code2wav 11 "$python"
    drawings
  else
    CUDA_VISIBLE_DEVICES=0 part thinker 14 "$python" & thinker=$!
    CUDA_VISIBLE_DEVICES=1 part code2wav 11 "$python" & code2wav=$!
    CUDA_VISIBLE_DEVICES=2 drawings & image=$!
    failed=0
    for one in $thinker $code2wav $image; do wait "$one" || failed=$?; done
    (exit $failed)
  fi
  step "$folder/media.pt" "$python" train/media.py --data "$data" --out "$folder" --batch "$share"
  speakers
  step "$folder/small/config.json" "$python" train/write.py --out "$folder" --folder "$folder/small"
  step "$folder/heard.done" "$python" train/hear.py "$folder/small" --count "$(scaled 1000 | cut -d. -f1)" --temperature 0 0.9 \
    --notes "$folder/heard.json" --processes "$(nproc)" --flite "$FLITE"
  step "$folder/drawn.done" "$python" train/image/judge_image.py --folder "$folder/image/checkpoint" --count "$(scaled 200 | cut -d. -f1)"
} 2>&1 | tee -a "$folder/train.log"
