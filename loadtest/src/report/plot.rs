//! Plots as SVG texts, drawn by plotters.

use plotters::prelude::*;

use super::text::time;
use super::{Point, Times};

const SIZE: (u32, u32) = (860, 320);
const BLUE: RGBColor = RGBColor(0x1f, 0x5f, 0xa8);
const ORANGE: RGBColor = RGBColor(0xc2, 0x5a, 0x10);
const GREY: RGBColor = RGBColor(0xd8, 0xd8, 0xd8);
const INK: RGBColor = RGBColor(0x33, 0x33, 0x33);
/// For several curves in one plot; they differ in lightness too, so that a print in grey can be read.
const CURVES: [RGBColor; 6] = [
    BLUE,
    ORANGE,
    RGBColor(0x3a, 0x7d, 0x44),
    RGBColor(0x8c, 0x3f, 0x97),
    RGBColor(0x80, 0x6a, 0x00),
    RGBColor(0x00, 0x7d, 0x8a),
];

type Fault = Box<dyn std::error::Error>;

/// The look of a plot's axes.
macro_rules! axes {
    ($chart:expr) => {
        $chart
            .configure_mesh()
            .bold_line_style(GREY)
            .light_line_style(TRANSPARENT)
            .axis_style(INK)
            .label_style(("sans-serif", 15).into_font().color(&INK))
    };
}

/// The look and the place of a plot's legend.
macro_rules! legend {
    ($chart:expr, $place:expr) => {
        $chart
            .configure_series_labels()
            .position($place)
            .background_style(WHITE.mix(0.8))
            .border_style(GREY)
            .label_font(("sans-serif", 15).into_font().color(&INK))
            .draw()?
    };
}

/// What a plot shows when it cannot be drawn.
fn or_words(drawn: Result<String, Fault>) -> String {
    drawn.unwrap_or_else(|why| format!("<p>This plot could not be drawn: {why}</p>"))
}

/// The name of a quantile, from how many nines it has: `x` is 1 / (1 - quantile).
fn quantile_name(x: f64) -> String {
    match x {
        x if x < 1.5 => "0 %".into(),
        x if x < 5.0 => "50 %".into(),
        x => {
            let digits = (x.log10().round() as usize).saturating_sub(2);
            format!("{:.digits$} %", 100.0 - 100.0 / x)
        }
    }
}

/// Times by quantile, both axes logarithmic.
pub fn quantiles(times: &[(&str, &Times)]) -> String {
    let draw = || -> Result<String, Fault> {
        let mut svg = String::new();
        {
            let curves = times.iter().flat_map(|(_, times)| times.curve.iter());
            let (mut low, mut high, mut right) = (f64::INFINITY, 0.0f64, 10.0f64);
            for (quantile, time) in curves {
                low = low.min(time.max(0.1));
                high = high.max(*time);
                right = right.max(1.0 / (1.0 - quantile));
            }
            let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            let mut chart = ChartBuilder::on(&root)
                .margin(10)
                .x_label_area_size(36)
                .y_label_area_size(72)
                .build_cartesian_2d(
                    (1.0..right * 1.05).log_scale(),
                    (low * 0.9..high * 1.2).log_scale(),
                )?;
            axes!(chart)
                .x_desc("share of all that took no longer")
                .x_label_formatter(&|x| quantile_name(*x))
                .y_label_formatter(&|y| time(*y))
                .draw()?;
            for (at, (name, times)) in times.iter().enumerate() {
                let colour = CURVES[at % CURVES.len()];
                let points = times
                    .curve
                    .iter()
                    .map(|(quantile, time)| (1.0 / (1.0 - quantile), time.max(0.1)));
                chart
                    .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
                    .label(*name)
                    .legend(move |(x, y)| {
                        PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2))
                    });
            }
            legend!(chart, SeriesLabelPosition::UpperLeft);
            root.present()?;
        }
        Ok(svg)
    };
    or_words(draw())
}

/// What was done a second, over time, from zero.
pub fn rate(points: &[Point], unit: &str) -> String {
    let draw = || -> Result<String, Fault> {
        let mut svg = String::new();
        {
            let end = points.last().map_or(1.0, |point| point.second);
            let high = points
                .iter()
                .map(|point| point.per_second)
                .fold(1.0, f64::max);
            let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            let mut chart = ChartBuilder::on(&root)
                .margin(10)
                .x_label_area_size(36)
                .y_label_area_size(72)
                .build_cartesian_2d(0.0..end, 0.0..high * 1.1)?;
            axes!(chart)
                .x_desc("seconds")
                .y_desc(format!("{unit} a second"))
                .y_label_formatter(&|y| format!("{y:.0}"))
                .draw()?;
            let line = points.iter().map(|point| (point.second, point.per_second));
            chart.draw_series(
                AreaSeries::new(line, 0.0, BLUE.mix(0.15)).border_style(BLUE.stroke_width(2)),
            )?;
            root.present()?;
        }
        Ok(svg)
    };
    or_words(draw())
}

/// Median, 99th percentile and maximum over time, logarithmic.
pub fn times(points: &[Point]) -> String {
    let draw = || -> Result<String, Fault> {
        let points: Vec<&Point> = points
            .iter()
            .filter(|point| point.per_second > 0.0)
            .collect();
        let mut svg = String::new();
        {
            let end = points.last().map_or(1.0, |point| point.second);
            let low = points
                .iter()
                .map(|point| point.p50)
                .fold(f64::INFINITY, f64::min)
                .clamp(0.1, 1e9);
            let high = points.iter().map(|point| point.max).fold(1.0, f64::max);
            let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            let mut chart = ChartBuilder::on(&root)
                .margin(10)
                .x_label_area_size(36)
                .y_label_area_size(72)
                .build_cartesian_2d(0.0..end, (low * 0.8..high * 8.0).log_scale())?;
            axes!(chart)
                .x_desc("seconds")
                .y_label_formatter(&|y| time(*y))
                .draw()?;
            type Pick = fn(&Point) -> f64;
            let lines: [(&str, Pick, RGBColor); 3] = [
                ("maximum", |point| point.max, RGBColor(0x99, 0x99, 0x99)),
                ("99 %", |point| point.p99, ORANGE),
                ("50 %", |point| point.p50, BLUE),
            ];
            for (name, pick, colour) in lines {
                let line = points
                    .iter()
                    .map(|point| (point.second, pick(point).max(0.1)));
                chart
                    .draw_series(LineSeries::new(line, colour.stroke_width(2)))?
                    .label(name)
                    .legend(move |(x, y)| {
                        PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2))
                    });
            }
            legend!(chart, SeriesLabelPosition::UpperRight);
            root.present()?;
        }
        Ok(svg)
    };
    or_words(draw())
}

/// Horizontal bars, logarithmic, as plain SVG of a table's size: names with values.
pub fn bars(rows: &[(String, f64)], unit: &str) -> String {
    let draw = || -> Result<String, Fault> {
        let mut svg = String::new();
        {
            let height = 60 + 34 * rows.len() as u32;
            let high = rows.iter().map(|(_, value)| *value).fold(1.0, f64::max);
            let low = rows
                .iter()
                .map(|(_, value)| *value)
                .filter(|it| *it > 0.0)
                .fold(high, f64::min);
            let floor = 10f64.powf((low * 0.9).log10().floor());
            let root = SVGBackend::with_string(&mut svg, (SIZE.0, height)).into_drawing_area();
            root.fill(&WHITE)?;
            let mut chart = ChartBuilder::on(&root)
                .margin(10)
                .margin_right(90)
                .x_label_area_size(36)
                .y_label_area_size(230)
                .build_cartesian_2d((floor..high * 1.05).log_scale(), 0.0..rows.len() as f64)?;
            axes!(chart)
                .disable_y_mesh()
                .y_labels(0)
                .x_desc(unit)
                .x_label_formatter(&|x| format!("{x:.0}"))
                .draw()?;
            let font = ("sans-serif", 15).into_font().color(&INK);
            for (at, (name, value)) in rows.iter().enumerate() {
                let top = (rows.len() - at) as f64;
                let colour = BLUE.mix(if at == 0 { 1.0 } else { 0.45 });
                let corners = [(floor, top - 0.2), (value.max(floor), top - 0.8)];
                chart.draw_series([Rectangle::new(corners, colour.filled())])?;
                let (x, y) = chart.backend_coord(&(value.max(floor), top - 0.5));
                root.draw_text(&figure(*value), &font, (x + 6, y - 7))?;
                root.draw_text(name, &font, (12, y - 7))?;
            }
            root.present()?;
        }
        Ok(svg)
    };
    or_words(draw())
}

/// Three digits are enough to read.
fn figure(value: f64) -> String {
    if value < 100.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}
