#!/usr/bin/env bash
# Sees to the system parts that posttrain and its tests use: installs what is missing where this is root with
# apt, says what to install elsewhere. Never fails: without them isolation is weaker, and reports say so.
set -uo pipefail

declare -A package=([bwrap]=bubblewrap [tmux]=tmux [curl]=curl [git]=git [make]=make [setpriv]=util-linux)

missing=()
for tool in "${!package[@]}"; do
    command -v "$tool" >/dev/null || missing+=("${package[$tool]}")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "system: installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    if apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; then
        exit 0
    fi
fi
echo "system: missing: ${missing[*]}; on Debian and Ubuntu: sudo apt-get install ${missing[*]}" >&2
