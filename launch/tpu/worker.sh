#!/bin/bash
# What launch/tpu/run.sh starts on every TPU VM: one process of a run, kept alive until it is done.
#
#   worker.sh learner FOLDER COMMAND...    COMMAND is told its place among the VMs of the slice, if there are several
#   worker.sh server FOLDER COMMAND...
#   worker.sh stop FOLDER
#
# FOLDER takes log, pid and, in the end, code. Started again with the same command it changes nothing; with another one
# it ends the former first.
set -uo pipefail
umask 077

readonly PORT=28470 # the one above it is used too
readonly RESTARTS=10 HEALTHY_S=600 END_S=150
readonly BACKOFF_S=(0 5 15 60 120 300)

role=$1 folder=$2
shift 2
mkdir -p "$folder" && cd "$folder/.." || exit 2
folder=$PWD/$(basename "$folder")

running() { kill -0 "$(cat "$folder/pid" 2>/dev/null)" 2>/dev/null; }

stop() {
  local pid
  running || return 0
  pid=$(<"$folder/pid")
  kill -TERM "$pid"
  for ((i = 0; i < END_S * 10; i++)); do
    running || return 0
    sleep 0.1
  done
  kill -KILL -- "-$pid" # run.sh makes it the leader of its group
}

metadata() { # ATTRIBUTE
  curl --silent --show-error --fail --retry 5 --retry-connrefused --header 'Metadata-Flavor: Google' \
    "http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance/attributes/$1"
}

if [[ $role == stop ]]; then
  stop
  exit
fi

printf '%q ' "$role" "$@" >"$folder/command.new"
if running && cmp -s "$folder/command.new" "$folder/command"; then exit 0; fi
stop
mv "$folder/command.new" "$folder/command"
rm -f "$folder/code"
echo $$ >"$folder/pid"
exec >>"$folder/log" 2>&1 </dev/null

place=()
if [[ $role == learner ]]; then
  # "IP,IP" or, on older ones, "NAME:ID:IP,NAME:ID:IP", by the number of the worker.
  if ! index=$(metadata agent-worker-number) || ! endpoints=$(metadata worker-network-endpoints); then
    echo 'error: the metadata server of this VM does not say which worker it is: is it a TPU VM?'
    echo 2 >"$folder/code"
    exit 2
  fi
  IFS=, read -ra hosts <<<"$endpoints"
  if ((${#hosts[@]} > 1)); then
    place=("--coordinator=${hosts[0]##*:}:$PORT" "--process_count=${#hosts[@]}" "--process_index=$index")
  fi
fi

leaving='' child=''
trap 'leaving=1; [[ $child ]] && kill -TERM "$child" 2>/dev/null' TERM INT

failures=0 code=143
cd "${ISOCOMPUTE_DIRECTORY:-.}" || exit 2
while [[ ! $leaving ]]; do
  started=$SECONDS
  "$@" "${place[@]}" &
  child=$!
  while :; do
    wait "$child"
    code=$?
    kill -0 "$child" 2>/dev/null || break
  done
  child=''
  [[ $leaving || $code == 2 ]] && break
  [[ $role == learner && ($code == 0 || $code == 130) ]] && break
  ((SECONDS - started > HEALTHY_S)) && failures=0
  if ((++failures > RESTARTS)); then
    echo "$(date +%T) the $role failed $failures times in a row (exit code $code): given up"
    break
  fi
  wait_s=${BACKOFF_S[failures < ${#BACKOFF_S[@]} ? failures - 1 : -1]}
  echo "$(date +%T) the $role ended with exit code $code; again in $wait_s s ($failures of $RESTARTS)"
  for ((i = 0; i < wait_s * 5; i++)); do
    [[ $leaving ]] && break
    sleep 0.2
  done
done
echo "$code" >"$folder/code.new" && mv "$folder/code.new" "$folder/code"
rm -f "$folder/pid"
exit "$code"
