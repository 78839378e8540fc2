// The setup that MLX needs in its host process: a main thread that never evaluates, a stream for
// each thread that does, and an orderly end.
#pragma once

#include <exception>
#include <string>

namespace mlx_primitives {

/** The text of an error, with its cause and cure where the system refuses a thread. */
std::string reason(const std::exception& error);

/**
 * Throws if the loaded MLX does not have the version of the headers. Functions that it lacks are
 * looked up when they are called, so this comes before every call of such a function.
 */
void require_version();

/**
 * Leaves MLX's main thread and the streams of threads as they are, for a library inside a program
 * that uses MLX by itself. Has to come before the first `prepare`.
 */
void be_guest();

/**
 * Prepares MLX once per process and gives this thread a CPU stream. Every bridge function that can
 * make MLX use a stream, or what it keeps for each thread, calls this first. Throws `refusal`, and
 * what `require_version` throws.
 */
void prepare();

/**
 * Why this thread can neither build nor evaluate graphs any more, or null: what MLX keeps for the
 * thread is destroyed, the process is ending, or it is the child of a fork, without MLX's threads.
 */
const char* refusal();

/**
 * Ends the streams that this thread made. MLX's default GPU stream of the thread is one of them,
 * and the thread's next op gets another one.
 */
void end_streams();

/** Counts this thread among those inside MLX; throws `refusal`. */
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
