#!/bin/bash
# train.sh FOLDER [PART...]: trains `small` and `small-image` from nothing on a machine with GPUs, from the repository's root,
# without a virtual environment; the same call goes on where one was cut off. FOLDER gets all states, logs and times, the
# checkpoints `small` and `image/checkpoint`, and what the recogniser and the judge of drawings say of them. A part is thinker,
# code2wav, drawings, talker or judged; what a part needs of the others must be in FOLDER (keep.py brings it to another machine).
# With several GPUs, those of CUDA_VISIBLE_DEVICES if it is set, what needs nothing of another runs beside it. $PYTHON is
# Python, $DATA a place for 19 GB of sounds (FOLDER/data), $FLITE the folder of flite's libraries if they are not installed,
# $WHEELS that of wheels which the machine lacks: pocketsphinx, Diffusers and what it needs. SHARE=0.01 makes all of it smaller,
# to try it.
set -e -o pipefail
folder=$1 python=${PYTHON:-python3} data=${DATA:-$1/data} share=${SHARE:-1} parts="thinker code2wav drawings talker judged"
shift
for one; do
  [[ " $parts " == *" $one "* ]] || { echo "train.sh: $one is no part: $parts" >&2; exit 2; }
done
wanted=" ${*:-$parts} "
mkdir -p "$folder" "$data"
export PYTHONPATH=$PWD/train:$PWD/tests:$PWD/.pkg${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
if [ -n "$WHEELS" ]; then
  site=$(mktemp -d)
  for wheel in "$WHEELS"/*.whl; do "$python" -m zipfile -e "$wheel" "$site"; done
  export PYTHONPATH=$PYTHONPATH:$site WHEELS=
fi
count=$({ nvidia-smi -L 2>/dev/null || true; } | wc -l)
IFS=, read -ra gpus <<< "${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 $((count - 1)))}"
count=${#gpus[@]}
scaled() { "$python" -c "print($share * $1)"; }
wants() { [[ $wanted == *" $1 "* ]]; }
lacks() { wants "$1" && [ ! -e "$folder/$1.done" ]; }

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
# on NUMBER COMMAND...: on one of several GPUs, the last one if there are fewer.
on() {
  local number=$1
  shift
  [ "$count" -gt 1 ] || { "$@"; return; }
  CUDA_VISIBLE_DEVICES=${gpus[number < count ? number : count - 1]} "$@"
}
make_data() { step "$data/$2" "$python" train/make_data.py --data "$data" --scale "$share" --flite "$FLITE" --only "$1"; }
thinker() {
  ! wants thinker || part thinker 14 "$python"
  ! lacks talker || step "$folder/media.pt" "$python" train/media.py --data "$data" --out "$folder" --batch "$share"
}
speakers() {
  if [ "$count" -lt 2 ]; then
    part talker 28 "$python"
  else
    part talker "$((count < 4 ? 28 / count : 8))" "$python" -m torch.distributed.run --standalone --nproc-per-node "$count"
  fi
}
drawings() {
  step "$folder/drawings.done" env PYTHON="$python" SHARE="$share" POOL="$(scaled 400000 | cut -d. -f1)" \
    bash train/image/train.sh "$(scaled 13)" "$folder/image"
}
judged() {
  step "$folder/small/config.json" "$python" train/write.py --out "$folder" --folder "$folder/small"
  step "$folder/heard.done" "$python" train/hear.py "$folder/small" --count "$(scaled 1000 | cut -d. -f1)" --temperature 0 0.9 \
    --notes "$folder/heard.json" --processes "$(nproc)" --flite "$FLITE"
  step "$folder/drawn.done" "$python" train/image/judge_image.py --folder "$folder/image/checkpoint" --count "$(scaled 200 | cut -d. -f1)"
}
failed=0
# ended PID...: waits for them, and keeps what went wrong.
ended() {
  local one
  for one; do wait "$one" || failed=$?; done
}

{
  codes=$folder/codes-$(basename "$data").pt drawn='' thought='' heard=''
  if wants drawings; then on 2 drawings & drawn=$!; fi
  if lacks thinker || { lacks talker && [ ! -e "$folder/media.pt" ]; }; then
    make_data questions questions.pkl
    if [ "$count" -gt 1 ]; then on 0 thinker & thought=$!; fi
  fi
  if lacks code2wav || { lacks talker && [ ! -e "$codes" ]; }; then
    make_data voices utterances.pkl
    step "$codes" on 1 "$python" train/codes.py --data "$data" --out "$folder"
  fi
  if [ "$count" -lt 3 ]; then ended $drawn; drawn=''; fi
  if [ "$count" -lt 2 ]; then thinker; fi
  if wants code2wav; then on 1 part code2wav 11 "$python" & heard=$!; fi
  ended $thought $heard $drawn
  [ "$failed" = 0 ] || exit "$failed"
  ! wants talker || speakers
  ! wants judged || judged
} 2>&1 | tee -a "$folder/train.log"
