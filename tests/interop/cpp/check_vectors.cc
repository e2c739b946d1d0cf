// Checks this language against the golden vectors, without a server: every field of every message is known, and
// the patches and edits of a decode come to the bits of its dense replies.
//
//   check_vectors ../vectors/vectors.tsv
#include <google/protobuf/message.h>

#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "logitd/v1/service.pb.h"
#include "logits.h"

using namespace logitd::v1;

struct Exchange {
  std::string scenario, rpc, request, status, reply;
};

std::string FromHex(const std::string& text) {
  std::string bytes;
  for (size_t place = 0; place < text.size(); place += 2)
    bytes += static_cast<char>(std::stoi(text.substr(place, 2), nullptr, 16));
  return bytes;
}

std::vector<Exchange> Read(const std::string& path) {
  std::ifstream file(path);
  std::vector<Exchange> exchanges;
  std::string line;
  std::getline(file, line);  // the names of the columns
  while (std::getline(file, line)) {
    std::istringstream columns(line);
    Exchange e;
    for (std::string* column : {&e.scenario, &e.rpc, &e.request, &e.status, &e.reply})
      std::getline(columns, *column, '\t');
    e.request = FromHex(e.request);
    e.reply = FromHex(e.reply);
    exchanges.push_back(e);
  }
  return exchanges;
}

int failures = 0;

void Expect(bool holds, const Exchange& exchange, const std::string& rule) {
  if (holds) return;
  ++failures;
  std::cerr << exchange.scenario << ", " << exchange.rpc << ": " << rule << "\n";
}

// The order of fields is free, so that only their number of bytes must be the same.
bool IsKnown(const std::string& type, const std::string& bytes) {
  const auto* descriptor = google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(type);
  if (descriptor == nullptr) return false;
  auto* factory = google::protobuf::MessageFactory::generated_factory();
  std::unique_ptr<google::protobuf::Message> message(factory->GetPrototype(descriptor)->New());
  if (!message->ParseFromString(bytes)) return false;
  message->DiscardUnknownFields();
  return message->ByteSizeLong() == bytes.size();
}

template <typename Message>
Message Parse(const std::string& bytes) {
  Message message;
  message.ParseFromString(bytes);
  return message;
}

// The dense replies of a decode, and the same logits by the replies of another form.
void CheckForm(const std::vector<Exchange>& dense, const std::vector<Exchange>& other) {
  Expect(!dense.empty() && dense.size() == other.size(), dense[0], "the forms must have the same steps");
  for (size_t step = 0; step < dense.size() && step < other.size(); ++step) {
    const auto request = Parse<ApplyRequest>(dense[step].request);
    const auto reply = Parse<ApplyResponse>(other[step].reply);
    auto logits = logitd::Unpack<float>(request.logits().data());
    const size_t columns = request.logits().shape(1);
    if (reply.has_sparse())
      logitd::ApplyPatchInplace(reply.sparse(), logits.data(), columns);
    else
      logitd::ApplyEditsInplace(reply.edits(), PENALTY_PROFILE_SGLANG, logits.data(), columns);
    const auto processed = Parse<ApplyResponse>(dense[step].reply).dense().logits().data();
    Expect(logitd::Pack(logits) == processed, other[step], "must come to the bits of the dense reply");
  }
}

// Dense, then edits, of the same logits.
void CheckProfile(PenaltyProfile profile, const std::vector<Exchange>& applies) {
  auto logits = logitd::Unpack<float>(Parse<ApplyRequest>(applies[0].request).logits().data());
  const auto edits = Parse<ApplyResponse>(applies[1].reply).edits();
  logitd::ApplyEditsInplace(edits, profile, logits.data(), logits.size() / edits.repetition().size() * sizeof(float));
  const auto processed = Parse<ApplyResponse>(applies[0].reply).dense().logits().data();
  Expect(logitd::Pack(logits) == processed, applies[1], "must come to the bits of the dense reply");
}

int main(int argc, char** argv) {
  const auto exchanges = Read(argc > 1 ? argv[1] : "vectors.tsv");
  std::map<std::string, std::vector<Exchange>> applies;
  for (const Exchange& e : exchanges) {
    Expect(IsKnown("logitd.v1." + e.rpc + "Request", e.request), e, "the request must hold known fields only");
    const bool is_reply = e.status == "0";  // else a google.rpc.Status, whose proto is not compiled in here
    if (is_reply) Expect(IsKnown("logitd.v1." + e.rpc + "Response", e.reply), e, "the reply must hold known fields only");
    if (e.rpc == "Apply") applies[e.scenario].push_back(e);
  }
  CheckForm(applies["dense"], applies["sparse"]);
  CheckForm(applies["dense"], applies["edits"]);
  CheckProfile(PENALTY_PROFILE_SGLANG, applies["profile_sglang"]);
  CheckProfile(PENALTY_PROFILE_SGLANG_FUSED, applies["profile_sglang_fused"]);
  CheckProfile(PENALTY_PROFILE_VLLM, applies["profile_vllm"]);
  CheckProfile(PENALTY_PROFILE_HF, applies["profile_hf"]);
  std::cout << exchanges.size() << " exchanges checked, " << failures << " failed\n";
  return failures == 0 && !exchanges.empty() ? 0 : 1;
}
