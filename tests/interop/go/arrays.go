package main

// What a decoder does with the contract's arrays, which are little-endian: bytes to slices and back, sparse patches.

import (
	"encoding/binary"
	"math"

	pb "decoder/logitdv1"
)

func packInts(items []int32) []byte {
	data := make([]byte, 4*len(items))
	for i, item := range items {
		binary.LittleEndian.PutUint32(data[4*i:], uint32(item))
	}
	return data
}

func unpackInts(data []byte) []int32 {
	items := make([]int32, len(data)/4)
	for i := range items {
		items[i] = int32(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return items
}

func packFloats(items []float32) []byte {
	data := make([]byte, 4*len(items))
	for i, item := range items {
		binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(item))
	}
	return data
}

func unpackFloats(data []byte) []float32 {
	items := make([]float32, len(data)/4)
	for i := range items {
		items[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return items
}

// applyPatchInPlace writes the new values of a sparse reply into logits, [rows, columns].
func applyPatchInPlace(patch *pb.SparsePatch, logits []float32, columns int) {
	splits, ids, values := unpackInts(patch.RowSplits), unpackInts(patch.TokenIds), unpackFloats(patch.Values)
	for row := 0; row+1 < len(splits); row++ {
		for entry := splits[row]; entry < splits[row+1]; entry++ {
			logits[row*columns+int(ids[entry])] = values[entry]
		}
	}
}
