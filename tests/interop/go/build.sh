#!/usr/bin/env bash
# Builds the decoder into a folder and tests it against the golden vectors, offline, with Debian's packages:
#
#   apt-get install golang-go protobuf-compiler protoc-gen-go-1-5 protoc-gen-go-grpc \
#     golang-google-grpc-dev golang-google-protobuf-dev golang-github-golang-protobuf-1-5-dev
#   ./build.sh FOLDER
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
protos=$here/../../../proto
mkdir -p "$1" && folder=$(cd "$1" && pwd)

# Packages come from a folder, not from a module proxy.
export GO111MODULE=off GOPATH=$folder/go:/usr/share/gocode GOFLAGS= GOTOOLCHAIN=local
package=$folder/go/src/decoder
rm -rf "$package" && mkdir -p "$package/logitdv1"
cp "$here"/*.go "$package"
names=Mlogitd/v1/types.proto=decoder/logitdv1,Mlogitd/v1/service.proto=decoder/logitdv1
protoc -I "$protos" --go_out="$folder/go/src" --go_opt="$names" --go-grpc_out="$folder/go/src" --go-grpc_opt="$names" \
  "$protos"/logitd/v1/*.proto

go vet decoder
LOGITD_VECTORS=$here/../vectors/vectors.tsv go test -count=1 decoder
go build -o "$folder/decoder" decoder
