/* AMX for processors without it: what they refuse as invalid instructions is done here.
 *
 *   gcc -O2 -mfma -shared -fPIC amx_emulator.c -o amx_emulator.so
 *   LD_PRELOAD=./amx_emulator.so python ...
 *
 * After the descriptions in Intel's manual, and independent of the kernels' own portable form. What
 * a processor would refuse is said on stderr, and ends the process by the same signal.
 */
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64 };

typedef struct {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} Shapes;

static __thread Shapes shapes; /* palette 0: not configured */
static __thread uint8_t tiles[TILES][ROWS][ROW_BYTES];

/* An instruction, decoded. */
typedef struct {
  int opcode, prefix; /* 0: none, 1: 66, 2: F3, 3: F2 */
  int reg, rm, third; /* as registers */
  int in_memory, has_index;
  uint64_t base, index; /* of its address; the latter with its scale */
  const uint8_t* next;
} Instruction;

/* What the rest of the process asks to know whether this is loaded (csrc/builds.cpp). */
__attribute__((visibility("default"))) int amx_is_emulated = 1;

static int refuse(int number, const char* why) {
  char text[160];
  int length = snprintf(text, sizeof text, "amx emulator: %s\n", why);
  if (write(STDERR_FILENO, text, length) < 0) _exit(99);
  signal(number, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, number);
  sigprocmask(SIG_UNBLOCK, &set, NULL);
  raise(number);
  _exit(99);
}
static int undefined(const char* why) { return refuse(SIGILL, why); }
static int protection_fault(const char* why) { return refuse(SIGSEGV, why); }

static uint64_t reg(const ucontext_t* context, int number) {
  static const int places[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                 REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                 REG_R12, REG_R13, REG_R14, REG_R15};
  return (uint64_t)context->uc_mcontext.gregs[places[number]];
}

static int64_t displacement(const uint8_t** at, int size) {
  int8_t byte;
  int32_t word;
  memcpy(&byte, *at, 1);
  memcpy(&word, *at, 4);
  *at += size;
  return size == 1 ? byte : word;
}

/* The address after ``mod`` and ``rm`` of a ModRM byte; ``b`` and ``x`` are VEX's bits. */
static void decode_address(Instruction* i, const ucontext_t* context, int mod, int rm, int b, int x,
                           const uint8_t** at) {
  int base = rm | b << 3, has_base = 1;
  if (rm == 4) {
    int sib = *(*at)++, index = (sib >> 3 & 7) | x << 3;
    base = (sib & 7) | b << 3;
    i->has_index = 1;
    if (index != 4) i->index = reg(context, index) << (sib >> 6);
    if ((sib & 7) == 5 && mod == 0) {
      has_base = 0;
      i->base = (uint64_t)displacement(at, 4);
    }
  } else if (rm == 5 && mod == 0) { /* relative to the next instruction */
    int64_t offset = displacement(at, 4);
    has_base = 0;
    i->base = (uint64_t)*at + (uint64_t)offset;
  }
  if (has_base) i->base = reg(context, base);
  if (mod == 1) i->base += (uint64_t)displacement(at, 1);
  if (mod == 2) i->base += (uint64_t)displacement(at, 4);
}

/* 0 if it is none of those known here. */
static int decode(const ucontext_t* context, Instruction* i) {
  const uint8_t* at = (const uint8_t*)context->uc_mcontext.gregs[REG_RIP];
  memset(i, 0, sizeof *i);
  if (at[0] != 0xc4 || (at[1] & 0x1f) != 2 || (at[2] & 0x84)) return 0; /* VEX.128.0F38.W0 */
  int r = !(at[1] & 0x80), x = !(at[1] & 0x40), b = !(at[1] & 0x20);
  i->prefix = at[2] & 3;
  i->third = ~(at[2] >> 3) & 15;
  i->opcode = at[3];
  int mod = at[4] >> 6, rm = at[4] & 7;
  i->reg = (at[4] >> 3 & 7) | r << 3;
  i->rm = rm | b << 3;
  i->in_memory = mod != 3;
  at += 5;
  if (i->in_memory) decode_address(i, context, mod, rm, b, x, &at);
  i->next = at;
  return i->opcode == 0x49 || i->opcode == 0x4b || i->opcode == 0x5c || i->opcode == 0x5e;
}

static void configure(const Shapes* wanted) {
  if (wanted->palette > 1) protection_fault("ldtilecfg: no such palette");
  for (int n = 0; n < 14; n++)
    if (wanted->reserved[n]) protection_fault("ldtilecfg: reserved bytes are not zero");
  for (int t = 0; t < 16 && wanted->palette; t++) {
    int rows = wanted->rows[t], bytes = wanted->row_bytes[t];
    if (t >= TILES && (rows || bytes)) protection_fault("ldtilecfg: more than eight tiles");
    if (rows > ROWS || bytes > ROW_BYTES) protection_fault("ldtilecfg: a tile is too large");
    if (!rows != !bytes) protection_fault("ldtilecfg: rows without bytes, or bytes without rows");
  }
  shapes = *wanted;
  memset(tiles, 0, sizeof tiles);
}

static void check(int t) {
  if (!shapes.palette) undefined("no tiles are configured");
  if (t >= TILES || !shapes.rows[t]) undefined("a tile that is not configured");
}

static void transfer(const Instruction* i, int is_load) {
  int t = i->reg;
  if (!i->in_memory || !i->has_index) undefined("a tile's address needs a SIB byte");
  if (i->third) undefined("VEX.vvvv is used");
  check(t);
  if (shapes.row_bytes[t] % 4) undefined("rows of a tile are not whole words");
  if (shapes.start_row >= shapes.rows[t]) undefined("the first row is beyond the last");
  if (is_load) memset(tiles[t], 0, sizeof tiles[t]);
  for (int r = 0; r < shapes.rows[t]; r++) {
    uint8_t* memory = (uint8_t*)(i->base + i->index * (uint64_t)r);
    if (is_load) {
      memcpy(tiles[t][r], memory, shapes.row_bytes[t]);
    } else {
      memcpy(memory, tiles[t][r], shapes.row_bytes[t]);
    }
  }
}

static void check_product(const Instruction* i) {
  int c = i->reg, a = i->rm, b = i->third;
  if (i->in_memory) undefined("a product of tiles in memory");
  check(c), check(a), check(b);
  if (c == a || c == b || a == b) undefined("a product of a tile with itself");
  if (shapes.row_bytes[c] % 4 || shapes.row_bytes[a] % 4) undefined("rows are not whole words");
  if (shapes.rows[c] != shapes.rows[a]) undefined("the result's rows are not those of the first");
  if (shapes.row_bytes[c] != shapes.row_bytes[b])
    undefined("the result's columns are not those of the second");
  if (shapes.row_bytes[a] != 4 * shapes.rows[b])
    undefined("the first's columns are not the second's rows");
}

static float bf16(const uint8_t* two_bytes) {
  uint32_t bits = (uint32_t)two_bytes[0] << 16 | (uint32_t)two_bytes[1] << 24;
  float number;
  memcpy(&number, &bits, 4);
  return number;
}

/* Not inlined, so that nothing is computed before or after MXCSR is set. */
__attribute__((noinline)) static void multiply_bf16(uint8_t (*c)[ROW_BYTES],
                                                    uint8_t (*a)[ROW_BYTES],
                                                    uint8_t (*b)[ROW_BYTES], int rows, int depth,
                                                    int columns) {
  for (int m = 0; m < rows; m++) {
    float sums[2 * ROW_BYTES / 4] = {0};
    for (int k = 0; k < depth; k++) {
      for (int n = 0; n < 2 * columns; n++) {
        float x = bf16(a[m] + 4 * k + 2 * (n % 2));
        sums[n] = fmaf(x, bf16(b[k] + 2 * n), sums[n]);
      }
    }
    for (int n = 0; n < columns; n++) {
      float total;
      memcpy(&total, c[m] + 4 * n, 4);
      total += sums[2 * n] + sums[2 * n + 1];
      memcpy(c[m] + 4 * n, &total, 4);
    }
  }
}

static void add_bf16(const Instruction* i) {
  unsigned before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(0x9fc0); /* round to nearest even, denormals are zeros, no exceptions */
  multiply_bf16(tiles[i->reg], tiles[i->rm], tiles[i->third], shapes.rows[i->reg],
                shapes.row_bytes[i->rm] / 4, shapes.row_bytes[i->reg] / 4);
  __builtin_ia32_ldmxcsr(before);
}

static void add_bytes(const Instruction* i) {
  int a_signed = i->prefix >= 2, b_signed = i->prefix == 1 || i->prefix == 3;
  for (int m = 0; m < shapes.rows[i->reg]; m++) {
    for (int n = 0; n < shapes.row_bytes[i->reg] / 4; n++) {
      uint32_t total;
      memcpy(&total, tiles[i->reg][m] + 4 * n, 4);
      for (int k = 0; k < shapes.row_bytes[i->rm]; k++) {
        uint8_t a = tiles[i->rm][m][k], b = tiles[i->third][k / 4][4 * n + k % 4];
        total += (uint32_t)((a_signed ? (int8_t)a : (int)a) * (b_signed ? (int8_t)b : (int)b));
      }
      memcpy(tiles[i->reg][m] + 4 * n, &total, 4);
    }
  }
}

static void change_configuration(const Instruction* i) {
  if (i->third) undefined("VEX.vvvv is used");
  if (i->in_memory && i->reg == 0 && i->prefix == 0) {
    configure((const Shapes*)(i->base + i->index));
  } else if (i->in_memory && i->reg == 0 && i->prefix == 1) {
    memcpy((void*)(i->base + i->index), &shapes, sizeof shapes);
  } else if (!i->in_memory && i->prefix == 0 && i->reg == 0 && i->rm == 0) {
    memset(&shapes, 0, sizeof shapes);
    memset(tiles, 0, sizeof tiles);
  } else if (!i->in_memory && i->prefix == 3 && i->rm == 0) {
    check(i->reg);
    memset(tiles[i->reg], 0, sizeof tiles[i->reg]);
  } else {
    undefined("an unknown form of opcode 49");
  }
}

static void carry_out(const Instruction* i) {
  if (i->opcode == 0x49) {
    change_configuration(i);
  } else if (i->opcode == 0x4b) {
    if (i->prefix == 0) undefined("an unknown form of opcode 4b");
    transfer(i, i->prefix != 2); /* F3 stores; F2, and 66 with a hint, load */
  } else {
    if (i->opcode == 0x5c && i->prefix != 2) undefined("an unknown form of opcode 5c");
    check_product(i);
    i->opcode == 0x5c ? add_bf16(i) : add_bytes(i);
  }
}

static void on_invalid_instruction(int number, siginfo_t* info, void* state) {
  (void)number, (void)info;
  ucontext_t* context = state;
  Instruction i;
  if (!decode(context, &i)) undefined("an instruction that is none of AMX's");
  carry_out(&i);
  context->uc_mcontext.gregs[REG_RIP] = (greg_t)i.next;
}

__attribute__((constructor)) static void install(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_invalid_instruction;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGILL, &action, NULL);
}
