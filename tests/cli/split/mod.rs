//! The command on several ranks.

mod choices;
mod command;
