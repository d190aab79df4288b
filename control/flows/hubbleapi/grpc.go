package hubbleapi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nfqproxy/nfqproxy/control/flows/observe"
)

// The status codes of gRPC that are used (google.golang.org/grpc/codes).
const (
	codeInvalidArgument   = 3
	codeResourceExhausted = 8
	codeUnimplemented     = 12
	codeInternal          = 13
)

// statusError is an error with a status code.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string { return e.message }

func failure(code int, format string, args ...any) error {
	return &statusError{code, fmt.Sprintf(format, args...)}
}

// method is a method of the service: it takes a request and sends any number of responses, as
// protocol buffers.
type method func(ctx context.Context, request []byte, send func(answer []byte) error) error

// transferTimeout is the timeout of one message.
const transferTimeout = 30 * time.Second

// maxRequest bounds the size of requests: filters are what makes them large.
const maxRequest = 1 << 20

// serveGRPC serves a call by the specification of gRPC over HTTP/2 (github.com/grpc/grpc,
// doc/PROTOCOL-HTTP2.md): messages with a length before each, the status in the trailer.
func serveGRPC(w http.ResponseWriter, r *http.Request, call method) {
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
	flusher := http.NewResponseController(w)
	err := flusher.Flush() // so that a following client sees the response at once
	var request []byte
	if err == nil {
		// Without deadlines, a client that does not send or read would keep its share.
		_ = flusher.SetReadDeadline(time.Now().Add(transferTimeout))
		request, err = readMessage(r.Body)
		_ = flusher.SetReadDeadline(time.Time{})
	}
	if err == nil {
		err = call(r.Context(), request, func(answer []byte) error {
			_ = flusher.SetWriteDeadline(time.Now().Add(transferTimeout))
			defer flusher.SetWriteDeadline(time.Time{})
			var head [5]byte
			binary.BigEndian.PutUint32(head[1:], uint32(len(answer)))
			if _, err := w.Write(append(head[:], answer...)); err != nil {
				return err
			}
			return flusher.Flush()
		})
	}
	code, message := status(err)
	w.Header().Set("Grpc-Status", strconv.Itoa(code))
	// The specification has it percent-encoded; spaces may stay.
	w.Header().Set("Grpc-Message", strings.ReplaceAll(url.PathEscape(message), "%20", " "))
}

func status(err error) (code int, message string) {
	var s *statusError
	var asker *observe.Error
	switch {
	case err == nil:
		return 0, ""
	case errors.As(err, &s):
		return s.code, s.message
	case errors.As(err, &asker):
		return codeInvalidArgument, asker.Message
	}
	return codeInternal, err.Error()
}

// readMessage reads the one message of a request.
func readMessage(from io.Reader) ([]byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return nil, failure(codeInvalidArgument, "the request has no message: %v", err)
	}
	if head[0] != 0 {
		return nil, failure(codeUnimplemented, "the request is compressed: want it uncompressed")
	}
	length := binary.BigEndian.Uint32(head[1:])
	if length > maxRequest {
		return nil, failure(codeResourceExhausted, "the request has %d bytes: want at most %d", length, maxRequest)
	}
	message := make([]byte, length)
	if _, err := io.ReadFull(from, message); err != nil {
		return nil, failure(codeInvalidArgument, "incomplete request message: %v", err)
	}
	return message, nil
}
