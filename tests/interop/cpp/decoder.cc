// A decoder that lets logitd process its logits: greedy with penalties in every form of Apply, then a beam search.
//
//   decoder unix:PATH [SHARED_MEMORY_DIR]
//
// The model is a toy of integers; put yours in its place.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "logitd/v1/service.grpc.pb.h"
#include "logits.h"
#include "shared_memory.h"

using namespace logitd::v1;
using logitd::Pack;
using logitd::Unpack;
using Stub = LogitProcessorService::Stub;
using TokenIds = std::vector<int32_t>;
using Logits = std::vector<float>;  // [rows, kVocabSize]

// ---- The model: what it keeps of a row (its cache) is one number.

constexpr int kVocabSize = 32, kEos = 2, kNumSteps = 12;
constexpr float kPenaltyScale = 1.0f / 512, kBeamScale = 128;
const std::vector<TokenIds> kPrompts = {{4, 7}, {1, 7}};
using Cache = std::vector<int>;  // [rows]

void Advance(Cache& cache, const TokenIds& token_ids) {
  for (size_t row = 0; row < cache.size(); ++row) cache[row] = (3 * cache[row] + token_ids[row] + 1) % 43;
}

Cache Prefill() {
  Cache cache(kPrompts.size());
  for (int position : {0, 1}) Advance(cache, {kPrompts[0][position], kPrompts[1][position]});
  return cache;
}

Logits LogitsOf(const Cache& cache, float scale) {
  Logits logits;
  for (int state : cache)
    for (int id = 0; id < kVocabSize; ++id)
      logits.push_back(((3121 * state + 1789 * id + 523 * state * id + 7) % 10007 - 5003) * scale);
  return logits;
}

TokenIds ArgMax(const Logits& logits) {
  TokenIds best;
  for (auto row = logits.begin(); row != logits.end(); row += kVocabSize)
    best.push_back(std::max_element(row, row + kVocabSize) - row);
  return best;
}

// ---- The service.

std::string RandomBytes(size_t count) {
  static std::random_device device;
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(device());
  return bytes;
}

std::string RandomName(const std::string& prefix) {
  std::string name = prefix;
  for (unsigned char byte : RandomBytes(16)) name += "0123456789abcdef"[byte % 16];
  return name;
}

void Check(const grpc::Status& status) {
  if (!status.ok()) throw std::runtime_error("the call failed: " + status.error_message());
}

void Route(grpc::ClientContext& context, const std::string& batch_id) {
  context.AddMetadata("x-logitd-route", batch_id);  // a proxy keeps a batch on its server by it
}

// An open batch with its stream of steps; `Open` is &Stub::Apply or &Stub::BeamStep.
template <typename Request, typename Response>
class OpenBatch {
 public:
  using Stream = std::unique_ptr<grpc::ClientReaderWriter<Request, Response>>;

  OpenBatch(Stub& stub, CreateBatchRequest request, Stream (Stub::*open)(grpc::ClientContext*)) : stub_(stub) {
    request.set_batch_id(RandomName("cpp-"));
    request.set_create_key(RandomBytes(16));
    grpc::ClientContext context;
    Route(context, request.batch_id());
    CreateBatchResponse response;
    Check(stub.CreateBatch(&context, request, &response));
    description_ = response.batch();
    Route(stream_context_, request.batch_id());
    stream_ = (stub.*open)(&stream_context_);
  }

  ~OpenBatch() {
    stream_->WritesDone();
    stream_->Finish();
    DeleteBatchRequest request;
    request.set_batch_id(description_.batch_id());
    request.set_uid(description_.uid());
    grpc::ClientContext context;
    Route(context, description_.batch_id());
    DeleteBatchResponse response;
    stub_.DeleteBatch(&context, request, &response);
  }

  const Batch& description() const { return description_; }

  // Sends a step and reads its answer. When the answer is lost, send the same bytes again on a new stream: the server
  // knows the request_id and counts nothing twice.
  Response Step(Request request, bool is_mutation = true) {
    StepTarget& target = *request.mutable_target();
    target.set_batch_id(description_.batch_id());
    target.set_uid(description_.uid());
    target.set_expected_revision(description_.revision());
    if (is_mutation) target.set_request_id(RandomBytes(16));
    Response response;
    if (!stream_->Write(request) || !stream_->Read(&response)) Check(stream_->Finish());
    description_.set_revision(response.revision());
    return response;
  }

 private:
  Stub& stub_;
  Batch description_;
  grpc::ClientContext stream_context_;
  Stream stream_;
};

using PenaltyBatch = OpenBatch<ApplyRequest, ApplyResponse>;
using BeamBatch = OpenBatch<BeamStepRequest, BeamStepResponse>;

Tensor Describe(size_t rows) {
  Tensor tensor;
  tensor.set_data_type(DATA_TYPE_FP32);
  tensor.add_shape(rows);
  tensor.add_shape(kVocabSize);
  return tensor;
}

Tensor ToTensor(const Logits& logits) {
  Tensor tensor = Describe(logits.size() / kVocabSize);
  tensor.set_data(Pack(logits));
  return tensor;
}

// The tokens of the step before travel with the logits that follow from them. The first step has none.
ApplyResponse Apply(PenaltyBatch& batch, ApplyForm form, const TokenIds& token_ids, ApplyRequest request) {
  request.set_form(form);
  if (!token_ids.empty()) request.mutable_tokens()->set_token_ids(Pack(token_ids));
  return batch.Step(std::move(request), !token_ids.empty());
}

void ProcessDense(PenaltyBatch& batch, const TokenIds& token_ids, Logits& logits) {
  ApplyRequest request;
  *request.mutable_logits() = ToTensor(logits);
  logits = Unpack<float>(Apply(batch, APPLY_FORM_DENSE, token_ids, std::move(request)).dense().logits().data());
}

void ProcessSparse(PenaltyBatch& batch, const TokenIds& token_ids, Logits& logits) {
  ApplyRequest request;
  *request.mutable_logits() = ToTensor(logits);
  const ApplyResponse response = Apply(batch, APPLY_FORM_SPARSE, token_ids, std::move(request));
  logitd::ApplyPatchInplace(response.sparse(), logits.data(), kVocabSize);
}

// For logits that never leave an accelerator: only ids cross the wire, and this side does the arithmetic.
void ProcessEdits(PenaltyBatch& batch, const TokenIds& token_ids, Logits& logits) {
  const ApplyResponse response = Apply(batch, APPLY_FORM_EDITS, token_ids, {});
  logitd::ApplyEditsInplace(response.edits(), batch.description().profile(), logits.data(), kVocabSize);
}

// A region of shared memory. A real decoder has its logits there from the start, and copies nothing.
class SharedLogits {
 public:
  SharedLogits(Stub& stub, logitd::SharedMemory& memory) : stub_(stub), memory_(memory) {
    grpc::ClientContext context;
    RegisterSharedMemoryResponse response;
    Check(stub.RegisterSharedMemory(&context, memory.Registration(), &response));
    region_id_ = response.region_id();
  }

  ~SharedLogits() {
    UnregisterSharedMemoryRequest request;
    request.set_region_id(region_id_);
    grpc::ClientContext context;
    UnregisterSharedMemoryResponse response;
    stub_.UnregisterSharedMemory(&context, request, &response);
  }

  void Process(PenaltyBatch& batch, const TokenIds& token_ids, Logits& logits) {
    auto* shared = static_cast<float*>(memory_.data());
    std::copy(logits.begin(), logits.end(), shared);
    ApplyRequest request;
    *request.mutable_logits() = Describe(logits.size() / kVocabSize);
    request.mutable_logits()->mutable_shared_memory()->set_region_id(region_id_);
    Apply(batch, APPLY_FORM_IN_PLACE, token_ids, std::move(request));
    std::copy(shared, shared + logits.size(), logits.begin());
  }

 private:
  Stub& stub_;
  logitd::SharedMemory& memory_;
  std::string region_id_;
};

// ---- The decoder.

CreateBatchRequest TwoSequences() {
  CreateBatchRequest request;
  request.set_vocab_size(kVocabSize);
  for (size_t number = 0; number < kPrompts.size(); ++number) {
    Sequence& sequence = *request.add_sequences();
    sequence.set_sequence_id(std::to_string(number));
    sequence.set_prompt_token_ids(Pack(kPrompts[number]));
    sequence.set_max_new_tokens(kNumSteps);
  }
  return request;
}

void Print(const std::string& title, const TokenIds& token_ids, const std::string& end = "\n") {
  std::cout << title;
  for (int32_t id : token_ids) std::cout << ' ' << id;
  std::cout << end;
}

template <typename Process>
void DecodeGreedily(Stub& stub, const std::string& title, Process process) {
  CreateBatchRequest request = TwoSequences();
  Sequence& first = *request.mutable_sequences(0);  // the other has no penalties
  first.mutable_penalties()->set_repetition_penalty(1.5);
  first.mutable_penalties()->set_frequency_penalty(0.25);
  first.mutable_penalties()->set_presence_penalty(0.5);
  first.mutable_penalties()->set_min_new_tokens(4);
  first.add_eos_token_ids(kEos);
  PenaltyBatch batch(stub, request, &Stub::Apply);

  Cache cache = Prefill();
  TokenIds token_ids;
  std::vector<TokenIds> outputs(cache.size());
  for (int step = 0; step < kNumSteps; ++step) {
    Logits logits = LogitsOf(cache, kPenaltyScale);
    process(batch, token_ids, logits);
    token_ids = ArgMax(logits);
    Advance(cache, token_ids);
    for (size_t row = 0; row < outputs.size(); ++row) outputs[row].push_back(token_ids[row]);
  }
  for (const TokenIds& output : outputs) Print(title, output);
}

void SearchBeams(Stub& stub) {
  CreateBatchRequest request = TwoSequences();
  request.set_kind(BATCH_KIND_BEAM);
  for (int number : {0, 1}) {
    request.mutable_sequences(number)->add_eos_token_ids(kEos);
    request.mutable_sequences(number)->mutable_beam()->set_width(number == 0 ? 4 : 2);
  }
  BeamBatch batch(stub, request, &Stub::BeamStep);

  Cache cache = Prefill();  // at first one row a search, then its live beams
  while (!cache.empty()) {
    BeamStepRequest step;
    *step.mutable_logits() = ToTensor(LogitsOf(cache, kBeamScale));
    const BeamStepResponse response = batch.Step(std::move(step));
    Cache next;
    for (int32_t parent : Unpack<int32_t>(response.parent_rows())) next.push_back(cache[parent]);
    Advance(next, Unpack<int32_t>(response.token_ids()));
    cache = next;
    for (const SearchStep& search : response.searches())
      for (const Hypothesis& hypothesis : search.hypotheses()) {
        Print("beams", Unpack<int32_t>(hypothesis.token_ids()), " ");
        std::cout << "(" << hypothesis.score() << ")\n";
      }
  }
}

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: decoder unix:PATH [SHARED_MEMORY_DIR]\n";
    return 2;
  }
  const std::string target = argv[1];
  const auto stub = LogitProcessorService::NewStub(grpc::CreateChannel(target, grpc::InsecureChannelCredentials()));
  const size_t num_bytes = kPrompts.size() * kVocabSize * sizeof(float);

  DecodeGreedily(*stub, "dense", ProcessDense);
  DecodeGreedily(*stub, "sparse", ProcessSparse);
  DecodeGreedily(*stub, "edits", ProcessEdits);
  const auto decode_in_place = [&](const std::string& title, logitd::SharedMemory& memory) {
    SharedLogits shared(*stub, memory);
    DecodeGreedily(*stub, title, [&](auto&... arguments) { shared.Process(arguments...); });
  };
  if (target.rfind("unix:", 0) == 0) {
    logitd::MemoryFile file(target.substr(5), num_bytes);
    decode_in_place("memory file", file);
  }
  if (argc > 2) {
    logitd::NamedFile file(argv[2], RandomName("logitd-"), num_bytes);
    decode_in_place("named file", file);
  }
  SearchBeams(*stub);
}
