//! Prints the speeds and token counts of a generation, with the names that mlx-lm uses.

use mlx_primitives_llama::decode::Statistics;

use crate::output;

/// The smallest number of tokens over which a speed is computed. A speed over fewer tokens means
/// nothing, because the first tokens arrive two at a time.
const FEWEST: usize = 8;

/// Returns the tokens per second, or `None` if there are too few tokens.
fn speed(tokens: usize, tps: f64) -> Option<f64> {
    (tokens >= FEWEST).then_some(tps)
}

/// Returns the speeds of the prompt and of the generated text.
pub fn speeds(s: &Statistics) -> [Option<f64>; 2] {
    let prompt = s.prompt_tokens.saturating_sub(s.cached_tokens);
    [speed(prompt, s.prompt_tps()), speed(s.generated_tokens, s.generation_tps())]
}

/// Prints the statistics of a generation in mlx-lm's format. Leaves out speeds over too few tokens.
pub fn report(s: &Statistics, reason: &str) {
    let cached = match s.cached_tokens {
        0 => String::new(),
        cached => format!(", {cached} of them cached"),
    };
    let [prompt, text] = speeds(s)
        .map(|tps| tps.map_or_else(String::new, |tps| format!(", {tps:.1} tokens-per-sec")));
    output::eprintln(format_args!("Prompt: {} tokens{cached}{prompt}", s.prompt_tokens));
    output::eprintln(format_args!("Generation: {} tokens{text} ({reason})", s.generated_tokens));
    if s.draft_tokens > 0 {
        let (accepted, drafted) = (s.accepted_tokens, s.draft_tokens);
        output::eprintln(format_args!("Draft: {accepted} of {drafted} tokens accepted"));
    }
    output::eprintln(format_args!("Peak memory: {:.1} MB", s.peak_memory as f64 / 1e6));
}
