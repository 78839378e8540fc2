// What MLX needs from the process that hosts it: a main thread that never evaluates, a stream for
// each thread that does, and an orderly end.
#pragma once

namespace mlx_primitives {

/**
 * Prepares MLX, once for the process, and gives this thread a CPU stream. Every bridge function
 * that can make MLX create a stream calls this first.
 */
void prepare();

/** Counts this thread among those that are inside MLX; refuses to enter once the process ends. */
class Inside {
 public:
  Inside();
  ~Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

/** Marks that this thread, a stream's, runs code that a user wrote, which may call exit. */
class InUserTask {
 public:
  InUserTask();
  ~InUserTask();
  InUserTask(const InUserTask&) = delete;
  InUserTask& operator=(const InUserTask&) = delete;
};

/** Whether the process ends and nobody waits for results anymore: tasks that have not begun do
 * nothing. */
bool abandoned();

} // namespace mlx_primitives
