#!/usr/bin/env bash
# Installs what the samples need, builds them, and holds them against a real server.
#
#   tests/interop/run.sh PYTHON [pytest options]
#
# PYTHON has logitd with its dev extra. Debian's packages are installed where they are missing, which takes root; Node 20
# or later must be there. Nothing is skipped: what is missing fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=$1
shift

packages=(
  g++ cmake make pkg-config libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  golang-go protoc-gen-go-1-5 protoc-gen-go-grpc
  golang-google-grpc-dev golang-google-protobuf-dev golang-github-golang-protobuf-1-5-dev
)
model=build/interop/SmolLM2-135M-Instruct.Q4_1.gguf

install_debian_packages() {
  dpkg-query -W "${packages[@]}" >/dev/null 2>&1 && return
  local as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -qq -y --no-install-recommends "${packages[@]}" >/dev/null
}

install_node_packages() {
  local folder=tests/interop/node
  [ $folder/node_modules/.package-lock.json -nt $folder/package-lock.json ] && return
  npm install --prefix $folder --no-audit --no-fund
}

install_debian_packages
install_node_packages
[ -f $model ] || bash tests/interop/fetch_model.sh "$python" $model
LOGITD_INTEROP=1 "$python" -m pytest tests/interop "$@"
