// What a decoder does with the contract's arrays: bytes to vectors and back, sparse patches, edits.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "logitd/v1/service.pb.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "arrays are little-endian on the wire: swap them here");

namespace logitd {

template <typename T>
std::string Pack(const std::vector<T>& items) {
  return std::string(reinterpret_cast<const char*>(items.data()), items.size() * sizeof(T));
}

template <typename T>
std::vector<T> Unpack(const std::string& bytes) {
  std::vector<T> items(bytes.size() / sizeof(T));
  std::memcpy(items.data(), bytes.data(), items.size() * sizeof(T));
  return items;
}

// The form SPARSE: writes the new values into `logits`, [R, columns].
inline void ApplyPatchInplace(const v1::SparsePatch& patch, float* logits, size_t columns) {
  const auto splits = Unpack<int32_t>(patch.row_splits());
  const auto ids = Unpack<int32_t>(patch.token_ids());
  const auto values = Unpack<float>(patch.values());
  for (size_t row = 0; row + 1 < splits.size(); ++row)
    for (int32_t entry = splits[row]; entry < splits[row + 1]; ++entry)
      logits[row * columns + ids[entry]] = values[entry];
}

// One logit after its edit: the formula of the message Edits, in float32.
inline float Edited(v1::PenaltyProfile profile, float l, float r, float f, float p) {
  switch (profile) {
    case v1::PENALTY_PROFILE_SGLANG_FUSED:
      l = l + ((0.0f - f) - p);
      return l < 0 ? l * r : l / r;
    case v1::PENALTY_PROFILE_VLLM:
      return (l > 0 ? l * (1.0f / r) : l * r) - f - p;
    default:
      return (l < 0 ? l * r : l / r) - f - p;
  }
}

// The form EDITS, in full: does to `logits`, [R, columns], what the service would have done.
inline void ApplyEditsInplace(const v1::Edits& edits, v1::PenaltyProfile profile, float* logits, size_t columns) {
  constexpr int kSeen = 1, kOutput = 2, kBanned = 4;
  const auto splits = Unpack<int32_t>(edits.row_splits());
  const auto ids = Unpack<int32_t>(edits.token_ids());
  const auto repetition = Unpack<float>(edits.repetition());
  const auto presence = Unpack<float>(edits.presence());
  const auto frequency = Unpack<float>(edits.frequency_sums());
  for (size_t row = 0; row + 1 < splits.size(); ++row)
    for (int32_t entry = splits[row]; entry < splits[row + 1]; ++entry) {
      const int flags = static_cast<unsigned char>(edits.flags()[entry]);
      float& logit = logits[row * columns + ids[entry]];
      const float once = presence[row] * ((flags & kOutput) ? 1.0f : 0.0f);
      if (flags & kBanned)
        logit = -std::numeric_limits<float>::infinity();
      else if (flags & kSeen)
        logit = Edited(profile, logit, repetition[row], frequency[entry], once);
    }
}

}  // namespace logitd
