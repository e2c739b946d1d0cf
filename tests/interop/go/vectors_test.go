package main

// Checks this language against the golden vectors, without a server.

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	pb "decoder/logitdv1"
)

type exchange struct {
	scenario, rpc  string
	request, reply []byte
	isRefused      bool
}

func readVectors(t *testing.T) []exchange {
	path := os.Getenv("LOGITD_VECTORS")
	if path == "" {
		path = "../vectors/vectors.tsv"
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var exchanges []exchange
	lines := bufio.NewScanner(file)
	lines.Scan() // the names of the columns
	for lines.Scan() {
		columns := strings.Split(lines.Text(), "\t")
		request, requestErr := hex.DecodeString(columns[2])
		reply, replyErr := hex.DecodeString(columns[4])
		if requestErr != nil || replyErr != nil {
			t.Fatal(columns)
		}
		exchanges = append(exchanges, exchange{columns[0], columns[1], request, reply, columns[3] != "0"})
	}
	if lines.Err() != nil || len(exchanges) == 0 {
		t.Fatal("the file must hold exchanges, got", len(exchanges), lines.Err())
	}
	return exchanges
}

// isKnown says whether the bytes hold known fields only; their order is free.
func isKnown(t *testing.T, name string, data []byte) bool {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName("logitd.v1." + name))
	if err != nil {
		t.Fatal(err)
	}
	message := kind.New().Interface()
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, message); err != nil {
		return false
	}
	return proto.Size(message) == len(data)
}

func TestEveryMessageIsKnown(t *testing.T) {
	for _, e := range readVectors(t) {
		if !isKnown(t, e.rpc+"Request", e.request) {
			t.Errorf("%s, %s: the request must hold known fields only", e.scenario, e.rpc)
		}
		if !e.isRefused && !isKnown(t, e.rpc+"Response", e.reply) {
			t.Errorf("%s, %s: the reply must hold known fields only", e.scenario, e.rpc)
		}
	}
}

func applies(t *testing.T, scenario string) (requests []*pb.ApplyRequest, replies []*pb.ApplyResponse) {
	for _, e := range readVectors(t) {
		if e.scenario != scenario || e.rpc != "Apply" {
			continue
		}
		request, reply := &pb.ApplyRequest{}, &pb.ApplyResponse{}
		if proto.Unmarshal(e.request, request) != nil || proto.Unmarshal(e.reply, reply) != nil {
			t.Fatal("a message does not parse")
		}
		requests, replies = append(requests, request), append(replies, reply)
	}
	return requests, replies
}

func TestPatchesComeToTheDenseReplies(t *testing.T) {
	_, dense := applies(t, "dense")
	requests, sparse := applies(t, "sparse")
	if len(dense) != numSteps || len(sparse) != numSteps {
		t.Fatalf("both forms must have %d steps, got %d and %d", numSteps, len(dense), len(sparse))
	}
	for step, request := range requests {
		logits := unpackFloats(request.Logits.GetData())
		applyPatchInPlace(sparse[step].GetSparse(), logits, vocabSize)
		if !bytes.Equal(packFloats(logits), dense[step].GetDense().Logits.GetData()) {
			t.Errorf("step %d must come to the bits of the dense reply", step)
		}
	}
}
