#!/usr/bin/env bash
# Start the app; the first time, or when requirements.txt has changed, install what it needs.
#
#   ./launch.sh [FLAGS]             open the page (flags and commands go to demo.py)
#   ./launch.sh test [PYTEST ARGS]  install the test tools and a headless Chromium if they
#                                   are missing, then lint, type-check and run the tests
#
# PYTHON=...       the Python to set up with (default: the first suitable one found)
# TORCH_INDEX=...  where CPU builds of torch are looked for
set -euo pipefail

here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)"
venv="$here/.venv"
torch_index="${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}"
oldest=11 newest=14 # minor versions of Python 3 that torch 2.13.0 has builds for

say() { printf '%s\n' "$*" >&2; }
die() {
  say "launch.sh: $1"
  shift
  for line in "$@"; do say "  $line"; done
  exit 1
}

# The one Python of the environment; Windows keeps it in another place.
venv_python() {
  if [ -x "$venv/Scripts/python.exe" ]; then echo "$venv/Scripts/python.exe"; else echo "$venv/bin/python"; fi
}

# Print a Python that is new enough and can make environments, or explain why there is none.
find_python() {
  local candidate version without_venv="" seen=""
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.14 python3.11 python; do
    command -v -- "$candidate" >/dev/null || continue
    version="$("$candidate" -c 'import sys; print(*sys.version_info[:2], sep=".")' 2>/dev/null)" || continue
    seen="${seen:+$seen, }$candidate is $version"
    case "$version" in 3.*) ;; *) continue ;; esac
    if [ "${version#3.}" -lt "$oldest" ] || [ "${version#3.}" -gt "$newest" ]; then continue; fi
    if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
      command -v -- "$candidate"
      return
    fi
    without_venv="${without_venv:-$version}"
  done
  if [ -n "$without_venv" ]; then
    die "Python $without_venv is here, but without its venv module." \
      "Debian or Ubuntu: sudo apt-get install python$without_venv-venv" \
      "Elsewhere: install Python from https://www.python.org/downloads/, which has it."
  fi
  die "no Python from 3.$oldest to 3.$newest was found${seen:+ ($seen)}." \
    "Debian or Ubuntu: sudo apt-get install python3 python3-venv" \
    "macOS: brew install python@3.13    Windows and others: https://www.python.org/downloads/" \
    "It is somewhere else already? PYTHON=/path/to/python3 ./launch.sh"
}

make_environment() {
  if [ -d "$venv" ] && "$(venv_python)" -c '' 2>/dev/null; then return; fi
  local python
  python="$(find_python)"
  say "Making an environment for $("$python" --version) in $venv"
  # --clear: what is left of one whose Python went away, or whose making was broken off.
  "$python" -m venv --clear "$venv" ||
    die "the environment could not be made in $venv." \
      "See the lines above; the folder must be writable and its disk not full."
}

has_nvidia_gpu() {
  [ -e /proc/driver/nvidia/version ] || { command -v nvidia-smi && nvidia-smi -L; } >/dev/null 2>&1
}

# A thread, because looking up a name has no time limit of its own.
is_reachable() {
  "$(venv_python)" - "$1" <<'PYTHON' >/dev/null 2>&1
import os, sys, threading, time, urllib.request

def ask() -> None:
    try:
        urllib.request.urlopen(sys.argv[1], timeout=4).close()
    except OSError:
        os._exit(1)
    os._exit(0)

threading.Thread(target=ask, daemon=True).start()
time.sleep(5)
os._exit(1)
PYTHON
}

need_disk() { # MIB
  local free
  free="$(df -Pk "$here" | awk 'NR == 2 { print int($4 / 1024) }')"
  [ "${free:-$1}" -ge "$1" ] ||
    die "installing needs $1 MiB of free disk, and $here has $free MiB." \
      "Free some space, or move this folder to a larger disk."
}

is_installed() { # REQUIREMENTS STAMP
  cmp -s "$1" "$venv/$2"
}

# Install a list unless exactly this list was installed before.
install() { # REQUIREMENTS STAMP MIB
  is_installed "$1" "$2" && return
  local options=() log="$venv/install.log"
  rm -f "$log"
  if [ "$(uname -s)" = Linux ] && ! has_nvidia_gpu && grep -q '^torch==' "$1"; then
    # The usual build brings gigabytes of GPU libraries that nothing here would use.
    if is_reachable "$torch_index/torch/"; then options=(--extra-index-url "$torch_index"); fi
  fi
  need_disk "$3"
  say "Installing what ${1#"$here/"} lists (once)"
  "$(venv_python)" -m pip install --disable-pip-version-check --retries 2 --log "$log" \
    ${options[@]+"${options[@]}"} -r "$1" >&2 || explain_failed_install "$log"
  rm -f "$log"
  cp "$1" "$venv/$2"
}

explain_failed_install() { # LOG
  if grep -q 'No space left on device' "$1"; then
    die "the disk is full." "Free some space (TMPDIR and pip's cache count too) and start again."
  fi
  if grep -qE 'NewConnectionError|ConnectTimeout|NameResolutionError|ProxyError|Network is unreachable|Read timed out' "$1"; then
    die "packages could not be fetched: there is no network, or it is blocked." \
      "Connect and start again; what came is kept." \
      "Behind a proxy set https_proxy; with a mirror set PIP_INDEX_URL."
  fi
  if grep -q 'No matching distribution found' "$1"; then
    die "a package has no build for this system or Python (see the lines above)." \
      "torch 2.13.0 runs on 64-bit Linux and Windows and on Apple silicon, Python 3.$oldest to 3.$newest."
  fi
  die "installing failed; the lines above say why, and $1 has the details."
}

# Print the path of a Chromium that starts, or nothing. Ubuntu's package may be a stub.
find_chromium() {
  local candidate
  for candidate in ${CHROMIUM:+"$CHROMIUM"} chromium chromium-browser google-chrome; do
    if "$candidate" --version >/dev/null 2>&1; then
      command -v -- "$candidate"
      return
    fi
  done
  # Only now ask Playwright whether it has fetched one: that takes half a second.
  candidate="$("$(venv_python)" -c '
from playwright.sync_api import sync_playwright
with sync_playwright() as playwright:
    print(playwright.chromium.executable_path)' 2>/dev/null)" || return 0
  if "$candidate" --version >/dev/null 2>&1; then echo "$candidate"; fi
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

can_be_root() {
  [ "$(id -u)" = 0 ] || { command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; }
}

install_chromium() {
  say "Installing a headless Chromium for the browser tests (once)"
  if command -v apt-get >/dev/null && ! grep -qs '^ID=ubuntu' /etc/os-release && can_be_root; then
    as_root apt-get update -q >&2 || true
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends chromium >&2 || true
    [ -z "$(find_chromium)" ] || return 0
  fi
  local with_deps=()
  if command -v apt-get >/dev/null && can_be_root; then with_deps=(--with-deps); fi
  "$(venv_python)" -m playwright install ${with_deps[@]+"${with_deps[@]}"} chromium >&2 || true
}

find_or_install_chromium() {
  CHROMIUM="$(find_chromium)"
  if [ -z "$CHROMIUM" ]; then
    install_chromium
    CHROMIUM="$(find_chromium)"
  fi
  export CHROMIUM
  [ -n "$CHROMIUM" ] && return
  local advice="Install Chromium or Chrome with your system's packages, or set CHROMIUM=/path/to/it."
  [ -z "${CI:-}" ] || die "no headless Chromium could be installed, and in CI that is a failure." "$advice"
  say "No headless Chromium could be installed: the browser tests are skipped. $advice"
}

# The arguments ask for help only: of the whole, or of one command. (-h may also be a question.)
wants_help() { # ARGS
  case "${1:-}" in
    -h | --help) return 0 ;;
    serve | ask | batch | bench | doctor | test) case "${2:-}" in -h | --help) return 0 ;; esac ;;
  esac
  return 1
}

short_help() {
  cat <<'HELP'
usage: ./launch.sh [FLAGS]                     open the page (the first time, set everything up)
       ./launch.sh ask IMAGE... -q "QUESTION"  one question, answered in the terminal
       ./launch.sh batch FOLDER -q "QUESTION" --out FILE  the same about many pictures
       ./launch.sh bench                       measure this machine
       ./launch.sh doctor                      say what this machine is and what is missing
       ./launch.sh test [PYTEST ARGS]          run the linters and all tests

  --model auto|bundled|NAME|FOLDER   which model; bundled is the small one that comes along
  --config NAME|FILE                 settings: default, fast, fine, low_memory, or a TOML file
  --precision auto|fp32|mixed|int8   how the weights are kept
  --detail fast|balanced|fine|N      visual tokens per picture
  --host ADDRESS, --port NUMBER      where the page is served (127.0.0.1, 7860)
  --auth USER:PASSWORD, --share      ask for a login; also make a public link

Environment: PYTHON is the Python to set up with, TORCH_INDEX where CPU builds of torch are.
HELP
}

# Help must not wait for gigabytes: the app's own where it is installed, else a short one.
show_help() { # ARGS
  if [ "$1" != test ] && is_installed "$here/requirements.txt" .installed-requirements; then
    exec "$(venv_python)" "$here/demo.py" "$@"
  fi
  short_help
  [ "$1" = test ] ||
    printf '%s\n' "Every flag: the same again once the app is set up; any start does that."
}

# Run every check even when one fails, so that one run shows all there is to mend.
run_tests() { # PYTEST ARGS
  local python failed=""
  python="$(venv_python)"
  cd -- "$here"
  "$python" -m ruff check . || failed="$failed ruff-check"
  "$python" -m ruff format --check . || failed="$failed ruff-format"
  "$python" -m mypy || failed="$failed mypy"
  "$python" -m pytest "$@" || failed="$failed pytest"
  [ -z "$failed" ] || die "failed:$failed"
}

if wants_help "$@"; then
  show_help "$@"
  exit
fi
make_environment
# In MiB; with a GPU torch's own libraries take most of it.
if has_nvidia_gpu; then need=12000; else need=4000; fi
install "$here/requirements.txt" .installed-requirements "$need"
if [ "${1:-}" = test ]; then
  shift
  install "$here/tests/requirements.txt" .installed-test-requirements 500
  find_or_install_chromium
  run_tests "$@"
else
  exec "$(venv_python)" "$here/demo.py" "$@"
fi
