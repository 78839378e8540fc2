//! The speedups as a bar chart.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use mlx_primitives::Dtype;

use super::measure::Row;

const WIDTH: u32 = 900;
const BAR: u32 = 11;
const GAP: u32 = 12;
const TOP: u32 = 84;
const BOTTOM: u32 = 50;
const LEFT: u32 = 250;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// One bar a row, grouped by op, shape and kind, on a logarithmic axis from 1×.
pub fn svg(rows: &[Row], title: &str) -> Result<String> {
    let mut text = String::new();
    let rows: Vec<_> = rows.iter().filter(|row| row.builtin.is_some()).collect();
    let groups: Vec<_> = rows.chunk_by(|a, b| same_group(a, b)).collect();
    let bars: u32 = groups.iter().map(|group| group.len() as u32 * BAR + GAP).sum();
    let root = SVGBackend::with_string(&mut text, (WIDTH, TOP + bars + BOTTOM)).into_drawing_area();
    let drawn = root.fill(&WHITE).map_err(|e| anyhow!("{e}")).and_then(|()| {
        draw(&root, &groups, title, bars)?;
        root.present().map_err(|e| anyhow!("{e}"))
    });
    drop(root);
    drawn.map(|()| text)
}

fn same_group(a: &Row, b: &Row) -> bool {
    std::ptr::eq(a.workload, b.workload) && a.kind == b.kind
}

fn draw(root: &Area, groups: &[&[&Row]], title: &str, bars: u32) -> Result<()> {
    let failed = |e: DrawingAreaErrorKind<_>| anyhow!("{e}");
    let label = |size: i32, h, v| {
        TextStyle::from(("sans-serif", size).into_font()).color(&BLACK).pos(Pos::new(h, v))
    };
    root.draw_text(title, &label(18, HPos::Left, VPos::Top), (20, 14)).map_err(failed)?;

    let mut at = 20;
    for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
        let square = Rectangle::new([(at, 48), (at + 12, 60)], colour(dtype).filled());
        root.draw(&square).map_err(failed)?;
        let style = label(13, HPos::Left, VPos::Center);
        root.draw_text(dtype.name(), &style, (at + 18, 54)).map_err(failed)?;
        at += 100;
    }

    let speedups = groups.iter().copied().flatten().filter_map(|row| row.speedup());
    let (least, most) = speedups.fold((0.5, 2.0), |(l, m): (f64, f64), s| (l.min(s), m.max(s)));
    let area = root.margin(TOP, 0, LEFT, 30);
    let mut chart = ChartBuilder::on(&area)
        .x_label_area_size(BOTTOM)
        .build_cartesian_2d(
            (least..most * 1.8).log_scale(),
            RangedCoordf64::from(f64::from(bars)..0.0),
        )
        .map_err(failed)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|x| format!("{x}×"))
        .x_desc("times faster than MLX's built-in")
        .label_style(("sans-serif", 13))
        .draw()
        .map_err(failed)?;

    let mut y = f64::from(GAP) / 2.0;
    for group in groups {
        let height = f64::from(BAR) * group.len() as f64;
        let name = group_label(group[0]);
        let middle = TOP as i32 + (y + height / 2.0) as i32;
        let style = label(13, HPos::Right, VPos::Center);
        root.draw_text(&name, &style, (LEFT as i32 - 8, middle)).map_err(failed)?;
        for row in *group {
            let (top, bottom) = (y, y + f64::from(BAR) - 1.0);
            let speedup = row.speedup().unwrap_or(1.0);
            let bar = Rectangle::new([(1.0, top), (speedup, bottom)], colour(row.dtype).filled());
            chart.draw_series([bar]).map_err(failed)?;
            let value =
                if speedup < 10.0 { format!("{speedup:.1}") } else { format!("{speedup:.0}") };
            let style = label(11, HPos::Left, VPos::Center);
            let end = speedup.max(1.0) * 1.02;
            chart
                .draw_series([Text::new(value, (end, (top + bottom) / 2.0), style)])
                .map_err(failed)?;
            y += f64::from(BAR);
        }
        y += f64::from(GAP);
    }
    let par = PathElement::new([(1.0, 0.0), (1.0, f64::from(bars))], BLACK.stroke_width(2));
    chart.draw_series([par]).map_err(failed)?;
    Ok(())
}

fn group_label(row: &Row) -> String {
    format!("{} {} {}", row.workload.op, row.workload.shape_label(), row.kind.name())
}

fn colour(dtype: Dtype) -> RGBColor {
    match dtype {
        Dtype::Float32 => RGBColor(33, 102, 172),
        Dtype::Float16 => RGBColor(217, 119, 6),
        _ => RGBColor(46, 139, 87),
    }
}
