package guest

import (
	"bufio"
	"bytes"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
)

const (
	// maxFrame is the longest payload in bytes: two outputs of MaxOutput in base64, and room beside them.
	maxFrame = 4 << 20

	frameStart  = 0x1e // the record separator, as in RFC 7464; JSON writes it as an escape
	frameEnd    = '\n'
	frameHeader = 16 // two numbers of eight hex digits
)

// appendFrame appends the payload as a frame.
func appendFrame(dst, payload []byte) ([]byte, error) {
	if len(payload) > maxFrame {
		return dst, fmt.Errorf("framing a message: it has %d bytes and %d is the most; send less at once", len(payload), maxFrame)
	}
	if bytes.IndexByte(payload, frameStart) >= 0 {
		return dst, fmt.Errorf("framing a message: it holds the byte %#x, so it is no JSON", frameStart)
	}
	dst = append(dst, frameStart)
	dst = fmt.Appendf(dst, "%08x%08x", len(payload), crc32.ChecksumIEEE(payload))
	dst = append(dst, payload...)
	return append(dst, frameEnd), nil
}

// frameReader finds the whole frames of a stream and passes over everything else.
type frameReader struct {
	r *bufio.Reader
}

func newFrameReader(r io.Reader) *frameReader { return &frameReader{r: bufio.NewReaderSize(r, 32<<10)} }

// next gives the payload of the next whole frame. An error is the stream's own; after io.EOF the caller may go on,
// and what was read of an unfinished frame is gone.
func (f *frameReader) next() ([]byte, error) {
	for {
		if err := f.skipToStart(); err != nil {
			return nil, err
		}
		payload, err := f.body()
		if err != nil || payload != nil {
			return payload, err
		}
	}
}

// skipToStart consumes everything up to and with the next frameStart.
func (f *frameReader) skipToStart() error {
	for {
		c, err := f.r.ReadByte()
		if err != nil {
			return err
		}
		if c == frameStart {
			return nil
		}
	}
}

// body reads what follows a frameStart; nil without an error means that this was no whole frame. It never consumes
// another frameStart, so the search goes on from there.
func (f *frameReader) body() ([]byte, error) {
	header, err := f.take(frameHeader)
	if err != nil || header == nil {
		return nil, err
	}
	length, errLength := strconv.ParseUint(string(header[:8]), 16, 32)
	sum, errSum := strconv.ParseUint(string(header[8:]), 16, 32)
	if errLength != nil || errSum != nil || length > maxFrame {
		return nil, nil
	}
	framed, err := f.take(int(length) + 1)
	if err != nil || framed == nil {
		return nil, err
	}
	payload := framed[:length]
	if framed[length] != frameEnd || uint64(crc32.ChecksumIEEE(payload)) != sum {
		return nil, nil
	}
	return payload, nil
}

// take reads n bytes, or nil when a frameStart comes before them. Memory grows with what has arrived and not with
// what a header claims.
func (f *frameReader) take(n int) ([]byte, error) {
	taken := make([]byte, 0, min(n, 4<<10))
	for len(taken) < n {
		if _, err := f.r.Peek(1); err != nil {
			return nil, err
		}
		chunk, _ := f.r.Peek(min(n-len(taken), f.r.Buffered()))
		at := bytes.IndexByte(chunk, frameStart)
		if at >= 0 {
			_, _ = f.r.Discard(at)
			return nil, nil
		}
		taken = append(taken, chunk...)
		_, _ = f.r.Discard(len(chunk))
	}
	return taken, nil
}
