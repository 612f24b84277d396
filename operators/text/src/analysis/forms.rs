//! Gives a tokenizer the word form of each text.

use std::borrow::Cow;

use tantivy::tokenizer::Tokenizer;

use crate::unicode::word_form;

/// A tokenizer that splits the [`word_form`] of a text.
#[derive(Clone)]
pub(crate) struct Forms<T> {
    tokenizer: T,
    /// The form of the current text, if it differs from the text.
    form: String,
}

impl<T> Forms<T> {
    pub(crate) fn new(tokenizer: T) -> Self {
        Self { tokenizer, form: String::new() }
    }
}

impl<T: Tokenizer> Tokenizer for Forms<T> {
    type TokenStream<'a> = T::TokenStream<'a>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> T::TokenStream<'a> {
        match word_form(text) {
            Cow::Borrowed(text) => self.tokenizer.token_stream(text),
            Cow::Owned(form) => {
                // The stream borrows the form: it is held here as long as the stream may live.
                self.form = form;
                self.tokenizer.token_stream(&self.form)
            }
        }
    }
}
