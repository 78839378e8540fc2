//! Choices between our kernels and MLX's ops that a thread sets for the ops it builds.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use cxx::{Exception, UniquePtr};

use super::process::Process;
use super::{Call, Choice, Choices, Class};
use crate::array::{Array, from_list};
use crate::device;
use crate::error::Result;
use crate::ffi::bridge::{self as ffi, MlxArray};
use crate::ops::row_order::{RowOrder, row_order};

/// The source of choices for the ops of this thread. It replaces [`Choices::of_process`].
enum Scope {
    Chosen(Rc<Choices>),
    /// All ops run our kernels, and the classes of the calls are recorded.
    Counted(Vec<Class>),
}

thread_local! {
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

/// Calls `read` with this thread's scope. Returns `None` if the thread is ending and the scope is
/// already dropped.
fn scoped<R>(read: impl FnOnce(&mut Option<Scope>) -> Option<R>) -> Option<R> {
    SCOPE.try_with(|scope| read(&mut scope.borrow_mut())).ok().flatten()
}

fn replace(scope: Option<Scope>) -> Option<Scope> {
    scoped(|place| std::mem::replace(place, scope))
}

fn with_scope<R>(scope: Scope, f: impl FnOnce() -> R) -> (R, Option<Scope>) {
    struct Restore(Option<Scope>);
    impl Drop for Restore {
        fn drop(&mut self) {
            replace(self.0.take());
        }
    }
    let restore = Restore(replace(Some(scope)));
    let result = f();
    let scope = replace(None);
    drop(restore);
    (result, scope)
}

/// Runs `f`. The ops that `f` builds on this thread use these choices.
///
/// ```
/// use std::rc::Rc;
/// use mlx_primitives::{Array, ops, tune::{Choices, with_choices}};
///
/// let x = Array::ones::<f32>(&[2, 8])?;
/// let [ours, mlx] = [Choices::ours(), Choices::mlx()]
///     .map(|choices| with_choices(Rc::new(choices), || ops::rms_norm(&x, None, 1e-5)));
/// let (ours, mlx) = (ours?, mlx?);
/// assert!(ours.primitive() != mlx.primitive() && ours.shape() == mlx.shape());
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn with_choices<R>(choices: Rc<Choices>, f: impl FnOnce() -> R) -> R {
    with_scope(Scope::Chosen(choices), f).0
}

/// Runs `f` with our kernels for all ops. Returns the result, and the classes of the ops that have
/// a choice.
pub fn classes_of<R>(f: impl FnOnce() -> R) -> (R, Vec<Class>) {
    match with_scope(Scope::Counted(Vec::new()), f) {
        (result, Some(Scope::Counted(classes))) => (result, classes),
        (result, _) => (result, Vec::new()),
    }
}

/// Returns true if every op that this thread builds runs our kernel, so there is no choice. Returns
/// false in [`classes_of`], which records the ops that have a choice.
///
/// # Errors
///
/// Returns an error if the environment selects choices that cannot be read.
pub fn only_ours() -> Result<bool> {
    let scope = scoped(|scope| match scope {
        Some(Scope::Chosen(choices)) => Some(choices.is_all_ours()),
        Some(Scope::Counted(_)) => Some(false),
        None => None,
    });
    match scope {
        Some(only) => Ok(only),
        None if row_order() == RowOrder::Tokens => Ok(true),
        None => Ok(Process::of(device::current()?)?.choices().is_all_ours()),
    }
}

/// Returns `built`, the lazy result of our op. If the choice is MLX's own ops, returns their lazy
/// result for the same inputs instead.
pub(crate) fn chosen<C: Into<Call>>(
    op: impl fmt::Display,
    call: impl Fn() -> C,
    built: std::result::Result<UniquePtr<MlxArray>, Exception>,
) -> Result<Array> {
    let ours = Array::from_bridge(built)?;
    let call = || -> Call { call().into() };
    let class = || Class::new(&op, ours.dtype(), call());
    let scope = scoped(|scope| match scope {
        Some(Scope::Chosen(choices)) if choices.is_all_ours() => Some(Choice::Ours),
        Some(Scope::Chosen(choices)) => Some(choices.choice(&class())),
        Some(Scope::Counted(classes)) => {
            classes.push(class());
            Some(Choice::Ours)
        }
        None => None,
    });
    let choice = match scope {
        Some(choice) => choice,
        // The order in which MLX's ops add up depends on the number of rows, so our kernels run
        // here.
        None if row_order() == RowOrder::Tokens => Choice::Ours,
        None => Process::of(device::current()?)?.choice(&op, ours.dtype(), call),
    };
    // MLX's own ops refuse some inputs that our kernels take. Our kernels run in this case.
    let theirs = (choice == Choice::Mlx).then(|| ffi::composition(ours.raw()).ok()).flatten();
    Ok(theirs.and_then(|all| from_list(&all).into_iter().next()).unwrap_or(ours))
}
