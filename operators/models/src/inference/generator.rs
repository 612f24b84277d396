//! The engine's decoder: loops (f32 on the CPU) or tensor operations (everything else).

use candle_core::Result;

use super::network::{Network, Piece, Scratch};
use super::shape::Shape;
use super::slot::Slot;
use super::tensor_network::TensorNetwork;
use crate::decoder::Decoder;
use crate::device::Compute;

/// A decoder ready to generate.
pub(super) enum Generator {
    Loops(Network),
    Tensors(TensorNetwork),
}

impl Generator {
    /// Takes a decoder's weights; on a device also creates a cache for `places` rows of at most `context` tokens.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn new(decoder: &Decoder, compute: &Compute, places: usize, context: usize) -> Result<Self> {
        // The loops have no places: rows grow in memory of their own.
        if compute.is_plain() {
            return Network::new(decoder).map(Self::Loops);
        }
        TensorNetwork::new(decoder, places, context).map(Self::Tensors)
    }

    pub(super) fn shape(&self) -> Shape {
        match self {
            Self::Loops(network) => network.shape,
            Self::Tensors(network) => network.shape,
        }
    }

    /// Creates an empty slot.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn empty(&self) -> Result<Slot> {
        match self {
            Self::Loops(network) => Ok(Slot::new(&network.shape)),
            Self::Tensors(network) => network.empty(),
        }
    }

    /// Creates a slot with a copy of the first `count` tokens of another one.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn beginning(&self, slot: &Slot, count: usize) -> Result<Slot> {
        match self {
            Self::Loops(network) => Ok(slot.beginning(&network.shape, count)),
            Self::Tensors(network) => network.beginning(slot, count),
        }
    }

    /// Like [`Network::read`].
    ///
    /// # Errors
    /// When the device fails; the slots are then invalid.
    pub(super) fn read(
        &mut self,
        pieces: &mut [Piece<'_>],
        scratch: &mut Scratch,
        logits: &mut Vec<f32>,
    ) -> Result<()> {
        match self {
            Self::Loops(network) => {
                network.read(pieces, scratch, logits);
                Ok(())
            }
            Self::Tensors(network) => network.read(pieces, logits),
        }
    }
}
