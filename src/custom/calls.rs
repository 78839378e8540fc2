//! The functions of a custom primitive that C++ calls. They return errors and panics of the user's
//! code as values: a panic that unwound into C++ would end the process.

use std::any::Any;

use cxx::{CxxVector, UniquePtr};

use super::view::{Evaluated, Spec, View, ViewMut};
use super::{Call, CustomPrimitive, Layout};
use crate::array::{Array, from_list, require_addressable, to_list};
use crate::custom::bridge::ffi;
use crate::error::{Error, Result};
use crate::ffi::bridge::MlxArray;
use crate::panics::{Guarded, caught};

/// A [`CustomPrimitive`] of unknown type.
trait Erased: CustomPrimitive {
    fn as_any(&self) -> &dyn Any;
    fn is_equivalent_to(&self, other: &dyn Any) -> bool;
}

impl<P: CustomPrimitive> Erased for P {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn is_equivalent_to(&self, other: &dyn Any) -> bool {
        other.downcast_ref::<P>().is_some_and(|other| self.is_equivalent(other))
    }
}

/// A user's primitive. It stores the results of the methods `name` and `in_place` from the time of
/// [`apply`], since the methods may return other values later.
pub(crate) struct CustomOp {
    name: String,
    in_place: Option<usize>,
    primitive: Guarded<Box<dyn Erased>>,
}

/// Calls user code. If it fails or panics, the error names the primitive.
fn guard<T>(name: &str, method: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    let said = match caught(call) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error.to_string(),
        Err(said) => {
            let message = format!("{method} panicked: {said}");
            return Err(Error::Panic { op: name.to_owned(), message });
        }
    };
    let own = said.starts_with(&format!("[{name}]"));
    Err(if own { said } else { format!("[{name}] {method}: {said}") }.into())
}

impl CustomOp {
    pub(super) fn new(primitive: impl CustomPrimitive) -> Result<Self> {
        let name = guard("custom", "name", || Ok(primitive.name().to_owned()))?;
        if name.is_empty() || name.contains('\0') {
            return Err(Error::argument("custom", format_args!("a name, got {name:?}")));
        }
        let in_place = guard(&name, "in_place", || Ok(primitive.in_place()))?;
        let primitive = Guarded::new(Box::new(primitive) as Box<dyn Erased>);
        Ok(Self { name, in_place, primitive })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn call<T>(&self, method: &str, call: impl FnOnce(&dyn Erased) -> Result<T>) -> Result<T> {
        guard(&self.name, method, || call(&**self.primitive.get()))
    }

    /// The descriptions of the outputs for these inputs, or an error if memory cannot hold the
    /// outputs.
    pub(super) fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let outputs = self.call("outputs", |primitive| primitive.outputs(inputs))?;
        if outputs.is_empty() {
            return Err(Error::argument(&self.name, "at least one output, got none"));
        }
        for output in &outputs {
            require_addressable(&self.name, &output.shape, output.dtype)?;
        }
        if let Some(input) = self.in_place
            && inputs.get(input) != outputs.first()
        {
            let said = format_args!("input {input} to be what output 0 is, got another");
            return Err(Error::argument(&self.name, said));
        }
        Ok(outputs)
    }

    /// For each of `inputs` inputs, whether the primitive takes it in any layout.
    pub(super) fn any_layout(&self, inputs: usize) -> Result<Vec<bool>> {
        self.call("layout", |primitive| {
            let any =
                |input| primitive.layout(input) == Layout::Any && self.in_place != Some(input);
            Ok((0..inputs).map(any).collect())
        })
    }

    /// Returns an error unless the arrays that the method returned have the expected number, shapes
    /// and types.
    fn checked(&self, method: &str, arrays: &[Array], expected: &[Spec]) -> Result<()> {
        if arrays.len() != expected.len() {
            let said =
                format_args!("{method} to return {} arrays, got {}", expected.len(), arrays.len());
            return Err(Error::argument(&self.name, said));
        }
        for (index, (array, expected)) in arrays.iter().zip(expected).enumerate() {
            let got = Spec::of(array);
            if got != *expected {
                let said =
                    format_args!("{method} to return {expected} as number {index}, got {got}");
                return Err(Error::argument(&self.name, said));
            }
        }
        Ok(())
    }
}

fn specs(arrays: &CxxVector<MlxArray>) -> Vec<Spec> {
    arrays.iter().map(|array| Spec::of(&Array::from_ref(array))).collect()
}

fn numbers(argnums: &[i32]) -> Vec<usize> {
    argnums.iter().filter_map(|&argnum| usize::try_from(argnum).ok()).collect()
}

/// # Safety
/// The declaration in `bridge.rs` states the requirements.
pub(crate) unsafe fn custom_eval(
    op: &CustomOp,
    arrays: &[ffi::CustomView],
    inputs: usize,
    mut shapes: &[i32],
    mut strides: &[i64],
) -> Result<()> {
    let mut arrays = arrays.iter().map(|array| {
        let (shape, stride);
        (shape, shapes) = shapes.split_at(array.rank);
        (stride, strides) = strides.split_at(array.rank);
        Evaluated::new(array, shape, stride)
    });
    let view = |(index, array)| View::new(op.name(), index, array, op.in_place == Some(index));
    let views: Vec<_> = arrays.by_ref().take(inputs).enumerate().map(view).collect();
    let view = |(index, array)| {
        let filled = index == 0 && op.in_place.is_some();
        // SAFETY: the caller promises that each output has its own memory, and this is the only
        // view of it. Nothing else reads the memory of an input that the output took over.
        unsafe { ViewMut::new(op.name(), index, array, filled) }
    };
    let mut written: Vec<_> = arrays.enumerate().map(view).collect();
    op.call("eval_cpu", |primitive| primitive.eval_cpu(&views, &mut written))
}

pub(crate) fn custom_launches(
    op: &CustomOp,
    inputs: &CxxVector<MlxArray>,
    outputs: &CxxVector<MlxArray>,
    max_threads: u32,
) -> Result<Vec<ffi::CustomLaunch>> {
    let call = Call {
        inputs: specs(inputs),
        outputs: specs(outputs),
        strides: inputs.iter().map(|input| ffi::custom_strides(input).to_vec()).collect(),
        max_threads,
    };
    let launches = op.call("launch", |primitive| primitive.launch(&call))?;
    if launches.is_empty() {
        return Err(Error::argument(op.name(), "launch to return at least one dispatch, got none"));
    }
    let mut written = vec![false; call.outputs.len()];
    let checked: Vec<_> = launches
        .into_iter()
        .map(|launch| launch.checked(op.name(), &call, &mut written))
        .collect::<Result<_>>()?;
    for (index, output) in call.outputs.iter().enumerate() {
        if output.size() > 0 && !written[index] {
            let said =
                format_args!("launches that write every output, got none for number {index}");
            return Err(Error::argument(op.name(), said));
        }
    }
    Ok(checked)
}

pub(crate) fn custom_name(op: &CustomOp) -> &str {
    op.name()
}

/// The input whose memory output 0 takes over, or -1 for `None`.
pub(crate) fn custom_in_place(op: &CustomOp) -> i32 {
    op.in_place.map_or(-1, |input| input as i32)
}

pub(crate) fn custom_shapes(
    op: &CustomOp,
    inputs: &CxxVector<MlxArray>,
) -> Result<Vec<ffi::CustomOutput>> {
    let outputs = op.outputs(&specs(inputs))?;
    Ok(outputs.into_iter().map(ffi::CustomOutput::from).collect())
}

pub(crate) fn custom_vjp(
    op: &CustomOp,
    primals: &CxxVector<MlxArray>,
    cotangents: &CxxVector<MlxArray>,
    argnums: &[i32],
    outputs: &CxxVector<MlxArray>,
) -> Result<UniquePtr<CxxVector<MlxArray>>> {
    let (primals, cotangents, outputs) =
        (from_list(primals), from_list(cotangents), from_list(outputs));
    let argnums = numbers(argnums);
    let gradients =
        op.call("vjp", |primitive| primitive.vjp(&primals, &cotangents, &argnums, &outputs))?;
    let expected: Vec<_> = argnums.iter().filter_map(|&i| primals.get(i)).map(Spec::of).collect();
    op.checked("vjp", &gradients, &expected)?;
    Ok(to_list(&gradients))
}

pub(crate) fn custom_jvp(
    op: &CustomOp,
    primals: &CxxVector<MlxArray>,
    tangents: &CxxVector<MlxArray>,
    argnums: &[i32],
) -> Result<UniquePtr<CxxVector<MlxArray>>> {
    let expected = op.outputs(&specs(primals))?;
    let (primals, tangents) = (from_list(primals), from_list(tangents));
    let argnums = numbers(argnums);
    let derivatives = op.call("jvp", |primitive| primitive.jvp(&primals, &tangents, &argnums))?;
    op.checked("jvp", &derivatives, &expected)?;
    Ok(to_list(&derivatives))
}

pub(crate) fn custom_vmap(
    op: &CustomOp,
    inputs: &CxxVector<MlxArray>,
    axes: &[i32],
) -> Result<ffi::CustomBatch> {
    let inputs = from_list(inputs);
    let axes: Vec<Option<usize>> = axes.iter().map(|&axis| usize::try_from(axis).ok()).collect();
    let (mut unbatched, mut size) = (Vec::new(), 0);
    for (input, axis) in inputs.iter().zip(&axes) {
        let mut spec = Spec::of(input);
        if let Some(axis) = axis.filter(|&axis| axis < spec.shape.len()) {
            size = spec.shape.remove(axis);
        }
        unbatched.push(spec);
    }
    let (arrays, mapped) = op.call("vmap", |primitive| primitive.vmap(&inputs, &axes))?;
    let mut expected = op.outputs(&unbatched)?;
    if mapped.len() != expected.len() {
        let said = format_args!("vmap to return {} axes, got {}", expected.len(), mapped.len());
        return Err(Error::argument(op.name(), said));
    }
    for (spec, &axis) in expected.iter_mut().zip(&mapped) {
        if axis > spec.shape.len() {
            let rank = spec.shape.len() + 1;
            let said = format_args!("vmap to return an axis within rank {rank}, got {axis}");
            return Err(Error::argument(op.name(), said));
        }
        spec.shape.insert(axis, size);
    }
    op.checked("vmap", &arrays, &expected)?;
    let axes = mapped.into_iter().map(|axis| axis as i32).collect();
    Ok(ffi::CustomBatch { arrays: to_list(&arrays), axes })
}

pub(crate) fn custom_is_equivalent(a: &CustomOp, b: &CustomOp) -> bool {
    let same = a.call("is_equivalent", |primitive| {
        Ok(primitive.is_equivalent_to(b.primitive.get().as_any()))
    });
    same.unwrap_or(false)
}

/// Builds one lazy node of a primitive on the current device and stream, and returns its outputs.
/// The [module](crate::custom) has an example.
///
/// # Errors
///
/// Returns an error if the primitive refuses the inputs or has no name, if
/// [`CustomPrimitive::outputs`] returns no output or shapes of 2^47 bytes or more, or if output 0
/// is not like the input that [`CustomPrimitive::in_place`] names.
pub fn apply<P: CustomPrimitive>(primitive: P, inputs: &[&Array]) -> Result<Vec<Array>> {
    let op = CustomOp::new(primitive)?;
    let specs: Vec<Spec> = inputs.iter().map(|input| Spec::of(input)).collect();
    let outputs: Vec<_> = op.outputs(&specs)?.into_iter().map(ffi::CustomOutput::from).collect();
    let any_layout = op.any_layout(specs.len())?;
    let list = to_list(inputs.iter().copied());
    Ok(from_list(&*ffi::custom(Box::new(op), &list, &any_layout, &outputs)?))
}

/// Builds one lazy node of a primitive that has one output, and returns that output.
///
/// # Errors
///
/// Returns an error if the primitive has more than one output, or [`apply`] fails.
pub fn apply_one<P: CustomPrimitive>(primitive: P, inputs: &[&Array]) -> Result<Array> {
    let mut outputs = apply(primitive, inputs)?;
    match (outputs.pop(), outputs.len()) {
        (Some(output), 0) => Ok(output),
        (_, more) => Err(Error::argument(
            "apply_one",
            format_args!("a primitive of one output, got one of {}", more + 1),
        )),
    }
}
