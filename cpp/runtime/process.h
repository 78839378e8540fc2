// The setup that MLX needs in its host process: a main thread that never evaluates, a stream for
// each thread that does, and an orderly end.
#pragma once

namespace mlx_primitives {

/**
 * Prepares MLX once per process and gives this thread a CPU stream. Every bridge function that can
 * make MLX create a stream calls this first.
 */
void prepare();

/**
 * Ends the streams that this thread made. MLX's default GPU stream of the thread is one of them,
 * and the thread's next op gets another one.
 */
void end_streams();

/** Counts this thread among those inside MLX; throws once the process is ending. */
class Inside {
 public:
  Inside();
  ~Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

/** Marks that this thread, a stream's, runs a user's code, which may call exit. */
class InUserTask {
 public:
  InUserTask();
  ~InUserTask();
  InUserTask(const InUserTask&) = delete;
  InUserTask& operator=(const InUserTask&) = delete;
};

/**
 * Whether the process is ending and nobody waits for results: tasks that have not begun do nothing.
 */
bool abandoned();

} // namespace mlx_primitives
