#!/usr/bin/env bash
# Runs the tests of sampling and of the running service, and the compute bench, on an accelerator. Nothing is installed:
# it takes the Python that is there (PYTHON, else python3) with torch, numpy, grpcio, protobuf, pytest and hypothesis.
# Under five minutes; exits 1 if a part failed. Without an accelerator it says so and runs the same on the CPU, however
# long that takes.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ROOT=$PWD
PYTHON=${PYTHON:-python3}
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
SUMMARY=()
IS_LIMITED=1

# The folders under their installed names, and what an install says about itself.
map_packages() {
    mkdir -p "$WORK/logitd"
    ln -s "$ROOT/proto/logitd/v1" "$WORK/logitd/v1"
    for part in sampling service client; do ln -s "$ROOT/$part" "$WORK/logitd/$part"; done
    "$PYTHON" - "$WORK" <<'PYTHON'
import pathlib, sys, tomllib
project = tomllib.loads(pathlib.Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
folder = pathlib.Path(sys.argv[1], f"logitd-{project['version']}.dist-info")
folder.mkdir()
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: logitd\nVersion: {project['version']}\n")
PYTHON
    export PYTHONPATH="$WORK${PYTHONPATH:+:$PYTHONPATH}"
}

# Not pyproject's settings: a plug-in that they name may be missing here, and a warning of another torch is no failure.
configure_pytest() {
    printf '[pytest]\npythonpath = %s/tests\naddopts = --import-mode=importlib -q -p no:cacheprovider\n' "$ROOT" \
        > "$WORK/pytest.ini"
}

find_device() {
    "$PYTHON" -c 'import torch; found = torch.accelerator.current_accelerator(); print(found.type if found else "cpu")'
}

# run_part NAME SECONDS COMMAND...
run_part() {
    local name=$1 seconds=$2 start=$SECONDS status
    shift 2
    echo "== $name"
    timeout "$((seconds * IS_LIMITED))" "$@"
    status=$?
    case $status in
        0) SUMMARY+=("passed   $name, $((SECONDS - start)) s") ;;
        5) SUMMARY+=("skipped  $name: none has it in its name") ;;
        124) SUMMARY+=("FAILED   $name: not done after $seconds s") ;;
        *) SUMMARY+=("FAILED   $name: exit status $status") ;;
    esac
}

# run_tests FOLDER SECONDS: those that are parametrised over devices, whose names say which.
run_tests() {
    run_part "tests of $1 on $DEVICE" "$2" \
        "$PYTHON" -m pytest -c "$WORK/pytest.ini" --rootdir "$ROOT" "tests/$1" -k "$DEVICE"
}

can_import() {
    "$PYTHON" -c "import $1" 2> "$WORK/error" || { tail -n 1 "$WORK/error"; return 1; }
}

map_packages
configure_pytest
DEVICE=$(find_device) || exit 1
"$PYTHON" -c 'import sys, torch; print(f"Python {sys.version.split()[0]}, torch {torch.__version__}")'
if [ "$DEVICE" = cpu ]; then
    echo "No accelerator here: everything runs on the CPU."
    IS_LIMITED=0
else
    "$PYTHON" -c 'import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else "")'
fi

run_tests sampling 110
if REASON=$(can_import logitd.service.server) && REASON=$(can_import grpc_health.v1.health_pb2); then
    run_tests service 60
else
    SUMMARY+=("skipped  tests of service: $REASON")
fi
run_part "bench of sampling on $DEVICE" 120 "$PYTHON" tests/bench/run.py --only sampling/ --quick \
    --device "$DEVICE" --output "build/bench-$DEVICE.json"

echo "== Summary"
printf '%s\n' "${SUMMARY[@]}"
[[ "${SUMMARY[*]}" != *FAILED* ]]
