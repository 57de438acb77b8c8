/* Configures three tiles and executes instructions: -DROWS=... -DBYTES=... -DINSTRUCTIONS="..." */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void) {
  struct {
    uint8_t palette, first_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  } shapes = {.palette = 1, .bytes = {BYTES}, .rows = {ROWS}};
  syscall(SYS_arch_prctl, 0x1023, 18); /* permission, of a system that knows AMX */
  __asm__ volatile("ldtilecfg %0" ::"m"(shapes));
  __asm__ volatile(INSTRUCTIONS);
  __asm__ volatile("tilerelease");
  return 0;
}
