package hubblepb

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"

	"github.com/nfqproxy/nfqproxy/deploy/netns/netnstest"
)

var update = flag.Bool("update", false, "write the generated files anew")

// TestGenerated compiles the .proto files and compares the generators' output with the files here.
func TestGenerated(t *testing.T) {
	const module = "github.com/nfqproxy/nfqproxy/control/flows/hubbleapi/hubblepb"
	sources := []string{"flow/flow.proto", "observer/observer.proto", "relay/relay.proto"}
	parameters := []string{"module=" + module}
	for _, s := range sources {
		parameters = append(parameters, "M"+s+"="+module+";hubblepb")
	}
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(new(protocompile.SourceResolver)),
		SourceInfoMode: protocompile.SourceInfoStandard, // comments
	}
	files, err := compiler.Compile(t.Context(), sources...)
	if err != nil {
		t.Fatal(err)
	}
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: sources, Parameter: proto.String(strings.Join(parameters, ","))}
	for _, f := range files {
		addFile(request, f)
	}
	input, err := proto.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	netnstest.RequireTool(t, "go")
	for _, generator := range []string{"protoc-gen-go", "protoc-gen-go-grpc"} { // the versions in go.mod
		cmd := exec.CommandContext(t.Context(), "go", "tool", generator)
		cmd.Stdin, cmd.Stderr = bytes.NewReader(input), os.Stderr
		output, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", generator, err)
		}
		response := new(pluginpb.CodeGeneratorResponse)
		if err := proto.Unmarshal(output, response); err != nil || response.Error != nil || len(response.GetFile()) == 0 {
			t.Fatalf("%s: %v, %s", generator, err, response.GetError())
		}
		for _, f := range response.GetFile() {
			compareGenerated(t, f.GetName(), f.GetContent())
		}
	}
}

// addFile adds a file behind its imports.
func addFile(r *pluginpb.CodeGeneratorRequest, f protoreflect.FileDescriptor) {
	if slices.ContainsFunc(r.GetProtoFile(), func(d *descriptorpb.FileDescriptorProto) bool { return d.GetName() == f.Path() }) {
		return
	}
	for i := range f.Imports().Len() {
		addFile(r, f.Imports().Get(i).FileDescriptor)
	}
	r.ProtoFile = append(r.ProtoFile, protodesc.ToFileDescriptorProto(f))
}

func compareGenerated(t *testing.T, name, content string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if file, err := os.ReadFile(name); err != nil || string(file) != content {
		t.Errorf("%s is not what its .proto file generates (%v): run go generate", name, err)
	}
}
