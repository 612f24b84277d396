//! Formats costs and counts.

/// Formats `0.0213 USD`; small amounts keep three significant digits.
pub(crate) fn cost(amount: f64, currency: &str) -> String {
    // Prices per million tokens make sums of parts of a cent.
    let digits =
        if amount >= 100.0 || amount == 0.0 { 2 } else { (2.0 - amount.log10().floor()).clamp(2.0, 9.0) as usize };
    format!("{amount:.digits$} {currency}").trim_end().to_owned()
}

/// Formats `12`, `3,400`, `1.2 M`.
pub(crate) fn count(number: u64) -> String {
    let text = number.to_string();
    if number >= 10_000_000 {
        return format!("{:.1} M", number as f64 / 1e6);
    }
    let mut grouped = String::new();
    for (place, digit) in text.chars().enumerate() {
        if place > 0 && (text.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_keep_what_says_something() {
        let told = [0.0, 123.456, 2.5, 0.02134, 0.000_012_3].map(|amount| cost(amount, "USD"));
        assert_eq!(told, ["0.00 USD", "123.46 USD", "2.50 USD", "0.0213 USD", "0.0000123 USD"]);
        assert_eq!([999, 3400, 1_234_567, 12_345_678].map(count), ["999", "3,400", "1,234,567", "12.3 M"]);
    }
}
