// Tile registers in plain C++, by the pseudo code of Intel's manual; included by
// tile_registers.hpp.
#pragma once

#if !defined(__SSE__)
#error "numbers without a leading bit are flushed by MXCSR"
#endif

namespace quire::QUIRE_ISA {

class TileRegisters {
 public:
  void configure(const TileShapes& shapes) {
    shapes_ = shapes;
    __builtin_memset(tiles_, 0, sizeof tiles_);
  }

  template <int t>
  void zero() {
    __builtin_memset(&tiles_[t], 0, sizeof tiles_[t]);
  }

  template <int t>
  void load(const void* from, int64_t stride) {
    check(shapes_.rows[t]);
    zero<t>();
    for (int r = 0; r < shapes_.rows[t]; r++)
      __builtin_memcpy(tiles_[t].lanes[r], (const char*)from + r * stride, shapes_.row_bytes[t]);
  }
  template <int t>
  void store(void* to, int64_t stride) const {
    check(shapes_.rows[t]);
    for (int r = 0; r < shapes_.rows[t]; r++)
      __builtin_memcpy((char*)to + r * stride, tiles_[t].lanes[r], shapes_.row_bytes[t]);
  }

  template <int c, int a, int b>
  void add_bf16() {
    check_product(c, a, b);
    multiply_bf16(tiles_[c], tiles_[a], tiles_[b], shapes_.rows[c], shapes_.rows[b]);
  }
  template <int c, int a, int b>
  void add_bytes() {
    check_product(c, a, b);
    multiply_bytes(tiles_[c], tiles_[a], tiles_[b], shapes_.rows[c], shapes_.rows[b]);
  }

 private:
  static constexpr int width = tile_row_bytes / 4;
  struct Tile {
    alignas(64) uint32_t lanes[tile_rows][width];
  };

  // What the processor refuses as an invalid instruction.
  static void check(bool valid) {
    if (!valid) __builtin_trap();
  }
  void check_product(int c, int a, int b) const {
    check(shapes_.rows[c] && shapes_.rows[c] == shapes_.rows[a] &&
          shapes_.row_bytes[a] == 4 * shapes_.rows[b] &&
          shapes_.row_bytes[c] == shapes_.row_bytes[b] && shapes_.row_bytes[c]);
  }

  static float number(uint32_t bits) { return read<float>(&bits); }

  // Sums of even and of odd columns begin at zero, are rounded after each product, and are added up
  // before they are added to c.
  __attribute__((noinline)) static void multiply_bf16(Tile& c, const Tile& a, const Tile& b,
                                                      int rows, int depth) {
    Flushed flushed;
    for (int r = 0; r < rows; r++) {
      float even[width] = {}, odd[width] = {};
      for (int k = 0; k < depth; k++) {
        uint32_t pair = a.lanes[r][k];
        float x_even = number(pair << 16), x_odd = number(pair & 0xffff0000u);
        for (int n = 0; n < width; n++) {
          uint32_t w = b.lanes[k][n];
          even[n] = __builtin_fmaf(x_even, number(w << 16), even[n]);
          odd[n] = __builtin_fmaf(x_odd, number(w & 0xffff0000u), odd[n]);
        }
      }
      for (int n = 0; n < width; n++) {
        float sum = number(c.lanes[r][n]) + (even[n] + odd[n]);
        c.lanes[r][n] = read<uint32_t>(&sum);
      }
    }
  }

  __attribute__((noinline)) static void multiply_bytes(Tile& c, const Tile& a, const Tile& b,
                                                       int rows, int depth) {
    for (int r = 0; r < rows; r++) {
      for (int k = 0; k < depth; k++) {
        for (int n = 0; n < width; n++) {
          for (int i = 0; i < 32; i += 8) {
            int32_t x = int8_t(a.lanes[r][k] >> i), w = uint8_t(b.lanes[k][n] >> i);
            c.lanes[r][n] += uint32_t(x * w);
          }
        }
      }
    }
  }

  TileShapes shapes_;
  Tile tiles_[8];
};

}  // namespace quire::QUIRE_ISA
