// Sets MLX up in its host process: a main thread that never evaluates, a stream for each thread
// that evaluates, and a safe end of the process.
#pragma once

#include <exception>
#include <string>

namespace mlx_primitives {

/**
 * The message of an error. If the system refused to start a thread, the message names the cause and
 * a remedy.
 */
std::string reason(const std::exception& error);

/**
 * Throws if the version of the loaded MLX differs from the version of its headers. The loader
 * resolves a function only when it is first called. So this check must run before any function that
 * the loaded MLX may lack.
 */
void require_version();

/**
 * Leaves MLX's main thread and the streams of threads as they are. A library calls this if its
 * program also uses MLX directly. Must be called before the first `prepare`.
 */
void be_guest();

/**
 * Prepares MLX once per process and gives this thread a CPU stream. Every bridge function calls
 * this first if it can make MLX use a stream or thread-local data. Throws the message of `refusal`,
 * and the errors of `require_version`.
 */
void prepare();

/**
 * The reason why this thread cannot build or evaluate graphs, or null if it can. Possible reasons:
 * MLX's thread-local data is destroyed, the process is ending, or the process is the child of a
 * fork and lacks MLX's threads.
 */
const char* refusal();

/**
 * Ends the streams that this thread made, including its default GPU stream. The thread's next op
 * gets another stream.
 */
void end_streams();

/**
 * While this object exists, this thread counts as running code of MLX. Throws the message of
 * `refusal`.
 */
class Inside {
 public:
  Inside();
  ~Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

/** While this object exists, this thread of a stream runs a user's code, which may call `exit`. */
class InUserTask {
 public:
  InUserTask();
  ~InUserTask();
  InUserTask(const InUserTask&) = delete;
  InUserTask& operator=(const InUserTask&) = delete;
};

/**
 * Whether the process is ending. No thread then waits for results, so tasks that have not begun do
 * nothing.
 */
bool abandoned();

} // namespace mlx_primitives
