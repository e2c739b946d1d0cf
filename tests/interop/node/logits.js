// What a decoder does with the contract's arrays, which are little-endian as this machine is: bytes to typed arrays
// and back, sparse patches, edits.

/** The bytes of int32 items. */
export const packInts = (items) => bytesOf(Int32Array.from(items));

/** The bytes of a typed array, not copied. */
export const bytesOf = (array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength);

/** Bytes as items of a type: Int32Array, Float32Array or Float64Array. */
export const unpack = (Type, bytes) => new Type(new Uint8Array(bytes).buffer);

/** The form SPARSE: writes the new values into `logits`, [rows, columns]. */
export function applyPatchInPlace(patch, logits, columns) {
  const ids = unpack(Int32Array, patch.tokenIds);
  const values = unpack(Float32Array, patch.values);
  for (const [row, entry] of entries(patch.rowSplits)) logits[row * columns + ids[entry]] = values[entry];
}

const SEEN = 1, OUTPUT = 2, BANNED = 4;

/** The form EDITS, in full: does to `logits`, [rows, columns], what the service would have done. */
export function applyEditsInPlace(edits, profile, logits, columns) {
  const ids = unpack(Int32Array, edits.tokenIds);
  const repetition = unpack(Float32Array, edits.repetition);
  const presence = unpack(Float32Array, edits.presence);
  const frequency = unpack(Float32Array, edits.frequencySums);
  for (const [row, entry] of entries(edits.rowSplits)) {
    const place = row * columns + ids[entry];
    const once = presence[row] * (edits.flags[entry] & OUTPUT ? 1 : 0);
    if (edits.flags[entry] & BANNED) logits[place] = -Infinity;
    else if (edits.flags[entry] & SEEN)
      logits[place] = edited(profile, logits[place], repetition[row], frequency[entry], once);
  }
}

/** The formula of the message Edits: numbers here are float64, so every operation is rounded to float32. */
function edited(profile, l, r, f, p) {
  const round = Math.fround;
  if (profile === "PENALTY_PROFILE_SGLANG_FUSED") {
    l = round(l + round(round(0 - f) - p));
    return l < 0 ? round(l * r) : round(l / r);
  }
  if (profile === "PENALTY_PROFILE_VLLM") l = l > 0 ? round(l * round(1 / r)) : round(l * r);
  else l = l < 0 ? round(l * r) : round(l / r);
  return round(round(l - f) - p);
}

/** The row and the number of each entry. */
function* entries(rowSplits) {
  const splits = unpack(Int32Array, rowSplits);
  for (let row = 0; row + 1 < splits.length; row++)
    for (let entry = splits[row]; entry < splits[row + 1]; entry++) yield [row, entry];
}
