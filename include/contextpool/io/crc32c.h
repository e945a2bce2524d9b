// CRC-32C (Castagnoli): the remainder by the polynomial 0x1EDC6F41, bits reversed, first and last inverted. By the
// processor's instruction where it has one. Manifests of checkpoints and TensorBoard's records carry it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace contextpool::io {

// The checksum of some bytes, or, given the checksum of what came before them, of all of it.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

// The same without the instruction.
std::uint32_t crc32c_portable(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace contextpool::io
