//! `mlx-primitives chat`: holds a conversation with a model, line by line.

use std::io::{BufRead, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use mlx_primitives_llama::{PromptCache, decode::FinishReason, message};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::Value;

use crate::interrupt::{self};
use crate::joined;
use crate::output::{self, StdoutError};
use crate::ranks;
use crate::text::{Session, TextArgs, TooLong, report};

/// The text below the options in `--help`.
const COMMANDS: &str = "\
Each line is a message, and the model answers on stdout; what both said is kept, and so are its
keys and values. A model without a chat template goes on from the text so far. Lines can be piped in:
one that is too long for the model is left out, and the exit status is then 1.

  /reset  forgets the conversation
  /exit   ends, as does the end of the input; Ctrl-C ends an answer
  /help   shows these lines

Any other word of letters after a slash is an error; a space before the slash makes it a message.";

#[derive(clap::Args)]
#[command(after_help = COMMANDS)]
pub struct Args {
    #[command(flatten)]
    pub text: TextArgs,
    /// Write statistics to stderr after each answer.
    #[arg(long)]
    verbose: bool,
}

pub fn run(args: &Args) -> Result<()> {
    args.text.start()?;
    let session = Session::load(&args.text)?;
    let answering = Arc::new(AtomicBool::new(false));
    let (flag, busy) = (Arc::clone(&session.stop), Arc::clone(&answering));
    interrupt::on_ctrl_c(move || {
        interrupt::end_with_ranks();
        if !busy.load(Ordering::Relaxed) {
            std::process::exit(0); // the command is only waiting for a line
        }
        interrupt::interrupt(&flag);
    })?;
    interrupt::end_when_terminated();

    let system = args.text.system_prompt.as_deref().map(|text| message("system", text));
    let mut chat = Chat { session, messages: system.iter().cloned().collect(), cache: None };
    let mut lines = Lines::new()?;
    let interactive = ranks::from_first(|| Ok(lines.interactive().to_string()))? == "true";
    if interactive {
        output::eprintln(format_args!("{COMMANDS}\n"));
    }
    let mut left_out = 0;
    while let Some(line) = lines.next_of_first()? {
        match line.trim() {
            "" => {}
            "/exit" | "/quit" => break,
            "/help" => output::answer(format_args!("{COMMANDS}\n")),
            "/reset" => {
                chat.messages = system.iter().cloned().collect();
                chat.cache = None;
            }
            _ if unknown_command(&line) => {
                output::answer(format_args!(
                    "error: there is no command {line:?}: expected /reset, /exit, /quit or /help; a \
                     space before it makes it a message\n"
                ));
                left_out += 1;
            }
            _ => {
                answering.store(true, Ordering::Relaxed);
                let answered = chat.answer(&line, args.verbose);
                answering.store(false, Ordering::Relaxed);
                match answered {
                    Err(error) if error.is::<StdoutError>() => return Err(error),
                    // The prompt is too long. The next line may be short enough. So the
                    // conversation continues, even if the lines come from a pipe.
                    Err(error) if error.is::<TooLong>() => {
                        output::answer(format_args!(
                            "error: {error} with this line: write a shorter one, or forget the \
                             conversation with /reset\n"
                        ));
                        left_out += 1;
                    }
                    // A person can write another line. With several ranks, the error ends the
                    // command, because it may have occurred on one rank only.
                    Err(error) if interactive && joined::group().is_none() => {
                        output::answer(format_args!("error: {error:#}\n"));
                        left_out += 1;
                    }
                    answered => answered?,
                }
            }
        }
    }
    // If a program writes the lines, the exit status tells it that some lines had no answer.
    ensure!(left_out == 0 || interactive, "{left_out} of the lines had no answer");
    Ok(())
}

/// Whether a line begins with a word that looks like a command: a slash and then only letters or
/// hyphens.
fn unknown_command(line: &str) -> bool {
    let word = line.split_whitespace().next().filter(|_| line.starts_with('/'));
    let name = word.map_or("", |word| &word[1..]);
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphabetic() || c == '-')
}

struct Chat {
    session: Session,
    messages: Vec<Value>,
    /// The key/value cache of the conversation up to the last answer.
    cache: Option<PromptCache>,
}

impl Chat {
    fn answer(&mut self, line: &str, verbose: bool) -> Result<()> {
        let session = &self.session;
        session.stop.store(false, Ordering::Relaxed);
        self.messages.push(message("user", line));
        let answered = Self::prompt(session, &self.messages)
            .and_then(|prompt| Self::run(session, &prompt, self.cache.take(), verbose));
        match answered {
            Ok((text, cache)) => {
                self.messages.push(message("assistant", &text));
                self.cache = Some(cache);
                Ok(())
            }
            Err(error) => {
                self.messages.pop();
                Err(error)
            }
        }
    }

    fn prompt(session: &Session, messages: &[Value]) -> Result<Vec<u32>> {
        let prompt = session.encode(messages)?;
        let limit = session.longest();
        ensure!(prompt.len() <= limit, TooLong { tokens: prompt.len(), least: false, limit });
        Ok(prompt)
    }

    fn run(
        session: &Session,
        prompt: &[u32],
        cache: Option<PromptCache>,
        verbose: bool,
    ) -> Result<(String, PromptCache)> {
        let mut generation = session.start(prompt, cache)?;
        let mut answer = String::new();
        while !session.interrupted() {
            let Some(piece) = generation.next() else { break };
            let text = piece?.text;
            answer.push_str(&text);
            output::print(text)?;
        }
        output::println("")?;
        if verbose {
            let reason = generation.finish_reason().map_or("interrupted", FinishReason::name);
            report(&generation.statistics(), reason);
        }
        Ok((answer, generation.into_prompt_cache()?))
    }
}

/// Reads the lines of a conversation: from a terminal with editing, or from a pipe.
enum Lines {
    Terminal(Box<DefaultEditor>),
    Pipe(std::io::Lines<std::io::StdinLock<'static>>),
}

impl Lines {
    fn new() -> Result<Self> {
        if std::io::stdin().is_terminal() {
            return Ok(Self::Terminal(Box::new(DefaultEditor::new()?)));
        }
        Ok(Self::Pipe(std::io::stdin().lock().lines()))
    }

    fn interactive(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// Returns, on every rank, the next line that rank 0 reads.
    fn next_of_first(&mut self) -> Result<Option<String>> {
        let sent = ranks::from_first(|| {
            Ok(self.next()?.map_or(String::new(), |line| format!("{line}\n")))
        })?;
        Ok(sent.strip_suffix('\n').map(str::to_owned))
    }

    fn next(&mut self) -> Result<Option<String>> {
        match self {
            Self::Pipe(lines) => lines.next().transpose().context("reading a line from stdin"),
            Self::Terminal(editor) => match editor.readline("> ") {
                Ok(line) => {
                    editor.add_history_entry(&line)?;
                    Ok(Some(line))
                }
                Err(ReadlineError::Eof | ReadlineError::Interrupted) => Ok(None),
                Err(error) => Err(error.into()),
            },
        }
    }
}
