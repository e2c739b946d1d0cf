// A decoder that lets logitd process its logits: greedy with penalties, dense and sparse, then a beam search.
//
//	decoder unix:PATH
//
// The model is a toy of integers; put yours in its place.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/local"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	pb "decoder/logitdv1"
)

// ---- The model: what it keeps of a row (its cache) is one number.

const (
	vocabSize    = 32
	eos          = 2
	numSteps     = 12
	penaltyScale = 1.0 / 512
	beamScale    = 128
)

var prompts = [][]int32{{4, 7}, {1, 7}}

func advance(cache []int32, tokenIDs []int32) {
	for row := range cache {
		cache[row] = (3*cache[row] + tokenIDs[row] + 1) % 43
	}
}

func prefill() []int32 {
	cache := make([]int32, len(prompts))
	for position := range prompts[0] {
		advance(cache, []int32{prompts[0][position], prompts[1][position]})
	}
	return cache
}

// logitsOf gives [rows, vocabSize], flat.
func logitsOf(cache []int32, scale float32) []float32 {
	logits := make([]float32, 0, len(cache)*vocabSize)
	for _, state := range cache {
		for id := int32(0); id < vocabSize; id++ {
			number := (3121*state+1789*id+523*state*id+7)%10007 - 5003
			logits = append(logits, float32(number)*scale)
		}
	}
	return logits
}

func argMax(logits []float32) []int32 {
	best := make([]int32, len(logits)/vocabSize)
	for row := range best {
		values := logits[row*vocabSize : (row+1)*vocabSize]
		for id, value := range values {
			if value > values[best[row]] {
				best[row] = int32(id)
			}
		}
	}
	return best
}

// ---- The service.

func randomBytes() []byte {
	data := make([]byte, 16)
	if _, err := rand.Read(data); err != nil {
		log.Fatal(err)
	}
	return data
}

// openBatch is a batch with its stream of steps.
type openBatch struct {
	client pb.LogitProcessorServiceClient
	ctx    context.Context
	*pb.Batch
}

func open(client pb.LogitProcessorServiceClient, request *pb.CreateBatchRequest) (*openBatch, error) {
	request.BatchId = "go-" + hex.EncodeToString(randomBytes())
	request.CreateKey = randomBytes()
	// A proxy keeps a batch on its server by this.
	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-logitd-route", request.BatchId)
	response, err := client.CreateBatch(ctx, request)
	if err != nil {
		return nil, err
	}
	return &openBatch{client, ctx, response.Batch}, nil
}

// target names the next step. When its answer is lost, send the same bytes again on a new stream: the server knows the
// request_id and counts nothing twice.
func (b *openBatch) target(isMutation bool) *pb.StepTarget {
	target := &pb.StepTarget{BatchId: b.BatchId, Uid: b.Uid, ExpectedRevision: proto.Int64(b.Revision)}
	if isMutation {
		target.RequestId = randomBytes()
	}
	return target
}

func (b *openBatch) delete() error {
	_, err := b.client.DeleteBatch(b.ctx, &pb.DeleteBatchRequest{BatchId: b.BatchId, Uid: b.Uid})
	return err
}

func toTensor(logits []float32) *pb.Tensor {
	return &pb.Tensor{
		DataType: pb.DataType_DATA_TYPE_FP32,
		Shape:    []int64{int64(len(logits) / vocabSize), vocabSize},
		Payload:  &pb.Tensor_Data{Data: packFloats(logits)},
	}
}

// ---- The decoder.

func twoSequences() *pb.CreateBatchRequest {
	request := &pb.CreateBatchRequest{VocabSize: vocabSize}
	for number, prompt := range prompts {
		request.Sequences = append(request.Sequences, &pb.Sequence{
			SequenceId:     fmt.Sprint(number),
			PromptTokenIds: packInts(prompt),
			MaxNewTokens:   proto.Int32(numSteps),
		})
	}
	return request
}

func decodeGreedily(client pb.LogitProcessorServiceClient, title string, form pb.ApplyForm) error {
	request := twoSequences()
	request.Sequences[0].EosTokenIds = []int32{eos} // the other has no penalties
	request.Sequences[0].Penalties = &pb.PenaltyParameters{
		RepetitionPenalty: proto.Float64(1.5),
		FrequencyPenalty:  proto.Float64(0.25),
		PresencePenalty:   proto.Float64(0.5),
		MinNewTokens:      proto.Int32(4),
	}
	batch, err := open(client, request)
	if err != nil {
		return err
	}
	stream, err := client.Apply(batch.ctx)
	if err != nil {
		return err
	}
	cache, outputs := prefill(), make([][]int32, len(prompts))
	var tokenIDs []int32
	for step := 0; step < numSteps; step++ {
		logits := logitsOf(cache, penaltyScale)
		// The tokens of the step before travel with the logits that follow from them. The first step has none.
		request := &pb.ApplyRequest{Target: batch.target(tokenIDs != nil), Form: form, Logits: toTensor(logits)}
		if tokenIDs != nil {
			request.Tokens = &pb.TokenUpdate{TokenIds: packInts(tokenIDs)}
		}
		if err := stream.Send(request); err != nil {
			return err
		}
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		batch.Revision = response.Revision
		if form == pb.ApplyForm_APPLY_FORM_DENSE {
			logits = unpackFloats(response.GetDense().Logits.GetData())
		} else {
			applyPatchInPlace(response.GetSparse(), logits, vocabSize)
		}
		tokenIDs = argMax(logits)
		advance(cache, tokenIDs)
		for row, id := range tokenIDs {
			outputs[row] = append(outputs[row], id)
		}
	}
	for _, output := range outputs {
		fmt.Println(title, text(output))
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	return batch.delete()
}

func searchBeams(client pb.LogitProcessorServiceClient) error {
	request := twoSequences()
	request.Kind = pb.BatchKind_BATCH_KIND_BEAM
	for number, width := range []int32{4, 2} {
		request.Sequences[number].EosTokenIds = []int32{eos}
		request.Sequences[number].Beam = &pb.BeamParameters{Width: width}
	}
	batch, err := open(client, request)
	if err != nil {
		return err
	}
	stream, err := client.BeamStep(batch.ctx)
	if err != nil {
		return err
	}
	cache := prefill() // at first one row a search, then its live beams
	for len(cache) > 0 {
		logits := toTensor(logitsOf(cache, beamScale))
		if err := stream.Send(&pb.BeamStepRequest{Target: batch.target(true), Logits: logits}); err != nil {
			return err
		}
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		batch.Revision = response.Revision
		var next []int32
		for _, parent := range unpackInts(response.ParentRows) {
			next = append(next, cache[parent])
		}
		advance(next, unpackInts(response.TokenIds))
		cache = next
		for _, search := range response.Searches {
			for _, hypothesis := range search.Hypotheses {
				fmt.Printf("beams %s (%.6g)\n", text(unpackInts(hypothesis.TokenIds)), hypothesis.Score)
			}
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	return batch.delete()
}

func text(tokenIDs []int32) string {
	line := fmt.Sprint(tokenIDs)
	return line[1 : len(line)-1]
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: decoder unix:PATH")
	}
	// For a Unix socket or loopback.
	connection, err := grpc.Dial(os.Args[1], grpc.WithTransportCredentials(local.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	client := pb.NewLogitProcessorServiceClient(connection)
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	check(decodeGreedily(client, "dense", pb.ApplyForm_APPLY_FORM_DENSE))
	check(decodeGreedily(client, "sparse", pb.ApplyForm_APPLY_FORM_SPARSE))
	check(searchBeams(client))
}
