// The setup that MLX needs in its host process: a main thread that never evaluates, a stream for
// each thread that evaluates, and a safe end of the process.
#pragma once

#include <exception>
#include <string>

namespace mlx_primitives {

/**
 * The text of an error. If the system refused to start a thread, it includes the cause and a
 * remedy.
 */
std::string reason(const std::exception& error);

/**
 * Throws if the loaded MLX does not have the version of the headers. A function that this MLX lacks
 * is looked up only when it is called, so this check comes before every call of such a function.
 */
void require_version();

/**
 * Keeps MLX's main thread and the streams of threads unchanged, for a library inside a program that
 * also uses MLX directly. Must be called before the first `prepare`.
 */
void be_guest();

/**
 * Prepares MLX once per process and gives this thread a CPU stream. Every bridge function that can
 * make MLX use a stream or MLX's data of this thread calls this first. Throws `refusal` and the
 * errors of `require_version`.
 */
void prepare();

/**
 * The reason why this thread cannot build or evaluate graphs, or null. Either MLX's data of the
 * thread is destroyed, or the process is ending, or it is the child of a fork, without MLX's
 * threads.
 */
const char* refusal();

/**
 * Ends the streams that this thread made. This includes MLX's default GPU stream of the thread; the
 * thread's next op gets another one.
 */
void end_streams();

/** Counts this thread among the threads that run code of MLX; throws `refusal`. */
class Inside {
 public:
  Inside();
  ~Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

/**
 * Marks that this thread, which belongs to a stream, runs a user's code. That code may call exit.
 */
class InUserTask {
 public:
  InUserTask();
  ~InUserTask();
  InUserTask(const InUserTask&) = delete;
  InUserTask& operator=(const InUserTask&) = delete;
};

/**
 * Whether the process is ending, so that no thread waits for results. Tasks that have not begun
 * then do nothing.
 */
bool abandoned();

} // namespace mlx_primitives
