// Command portforward is what "kubectl port-forward" needs of a kubelet: the streaming
// server that container runtimes are built with, for pods in the network namespace that it
// runs in (as those of a DaemonSet with hostNetwork are in the node's). As the only argument it
// takes the address to serve TLS at, and serves until it is killed.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "portforward:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return errors.New("want an address to serve at")
	}
	host, _, err := net.SplitHostPort(os.Args[1])
	if err != nil {
		return err
	}
	certificate, key, err := cert.GenerateSelfSignedCertKey(host, nil, nil)
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/portForward/{namespace}/{pod}", serve)
	// Without HTTP/2, in which no connection can be upgraded.
	server := http.Server{Addr: os.Args[1], Handler: mux, TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}}}
	return server.ListenAndServeTLS("", "")
}

func serve(w http.ResponseWriter, r *http.Request) {
	options, err := portforward.NewV4Options(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	portforward.ServePortForward(w, r, hostNetwork{}, r.PathValue("pod"), "", options, 4*time.Hour, 30*time.Second, portforward.SupportedProtocols)
}

// hostNetwork forwards as container runtimes do: to localhost of the pod's namespace, here
// this program's.
type hostNetwork struct{}

func (hostNetwork) PortForward(ctx context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort("localhost", strconv.Itoa(int(port))))
	if err != nil {
		return err
	}
	defer conn.Close()
	answered := make(chan error, 1)
	go func() {
		_, err := io.Copy(stream, conn)
		answered <- err
	}()
	if _, err := io.Copy(conn, stream); err != nil {
		return err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	return <-answered
}
