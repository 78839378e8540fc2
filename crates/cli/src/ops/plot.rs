//! Draws the speedups as a bar chart.

use anyhow::Result;
use mlx_primitives::Dtype;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::cases::TYPES;
use super::measure::Row;

const WIDTH: u32 = 900;
const BAR: u32 = 11;
const GAP: u32 = 12;
const TOP: u32 = 84;
const BOTTOM: u32 = 50;
const LEFT: u32 = 250;

/// Draws one bar for each row. The bars are grouped by op, shape and kind. The axis is logarithmic,
/// and the bars begin at 1×.
pub fn svg(rows: &[Row], title: &str) -> Result<String> {
    let mut text = String::new();
    draw(&mut text, rows, title)?;
    Ok(text)
}

fn draw(text: &mut String, rows: &[Row], title: &str) -> Result<()> {
    let rows: Vec<_> = rows.iter().filter_map(|row| Some((row, row.speedup()?))).collect();
    let same = |a: &Row, b: &Row| std::ptr::eq(a.workload, b.workload) && a.kind == b.kind;
    let groups: Vec<_> = rows.chunk_by(|(a, _), (b, _)| same(a, b)).collect();
    let bars: u32 = groups.iter().map(|group| group.len() as u32 * BAR + GAP).sum();
    let root = SVGBackend::with_string(text, (WIDTH, TOP + bars + BOTTOM)).into_drawing_area();
    root.fill(&WHITE)?;
    let label = |size: i32, h, v| {
        TextStyle::from(("sans-serif", size).into_font()).color(&BLACK).pos(Pos::new(h, v))
    };
    root.draw_text(title, &label(18, HPos::Left, VPos::Top), (20, 14))?;
    for (dtype, at) in TYPES.into_iter().zip([20, 120, 220]) {
        root.draw(&Rectangle::new([(at, 48), (at + 12, 60)], color(dtype).filled()))?;
        root.draw_text(dtype.name(), &label(13, HPos::Left, VPos::Center), (at + 18, 54))?;
    }

    let least = rows.iter().fold(0.5, |least: f64, (_, speedup)| least.min(*speedup));
    let most = rows.iter().fold(2.0, |most: f64, (_, speedup)| most.max(*speedup));
    let mut chart = ChartBuilder::on(&root.margin(TOP, 0, LEFT, 30))
        .x_label_area_size(BOTTOM)
        .build_cartesian_2d(
            (least..most * 1.8).log_scale(),
            RangedCoordf64::from(f64::from(bars)..0.0),
        )?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|x| format!("{x}×"))
        .x_desc("times faster than MLX's built-in")
        .label_style(("sans-serif", 13))
        .draw()?;

    let mut y = f64::from(GAP) / 2.0;
    for group in groups {
        let Row { workload, kind, .. } = group[0].0;
        let name = format!("{} {} {}", workload.op, workload.shape_label(), kind.name());
        let middle = TOP as i32 + (y + f64::from(BAR) * group.len() as f64 / 2.0) as i32;
        let style = label(13, HPos::Right, VPos::Center);
        root.draw_text(&name, &style, (LEFT as i32 - 8, middle))?;
        for (row, speedup) in group {
            let (top, bottom) = (y, y + f64::from(BAR) - 1.0);
            let bar = [(1.0, top), (*speedup, bottom)];
            chart.draw_series([Rectangle::new(bar, color(row.dtype).filled())])?;
            let value = format!("{speedup:.*}", usize::from(*speedup < 10.0));
            let end = (speedup.max(1.0) * 1.02, (top + bottom) / 2.0);
            chart.draw_series([Text::new(value, end, label(11, HPos::Left, VPos::Center))])?;
            y += f64::from(BAR);
        }
        y += f64::from(GAP);
    }
    let par = [(1.0, 0.0), (1.0, f64::from(bars))];
    chart.draw_series([PathElement::new(par, BLACK.stroke_width(2))])?;
    Ok(root.present()?)
}

fn color(dtype: Dtype) -> RGBColor {
    match dtype {
        Dtype::Float32 => RGBColor(33, 102, 172),
        Dtype::Float16 => RGBColor(217, 119, 6),
        _ => RGBColor(46, 139, 87),
    }
}
